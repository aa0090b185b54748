// Runs in the process that is frozen. Tests what the process that starts thaw passes to a copy: arguments, environment
// variables, descriptors. The runner, tests/native/test_delivery.py, thaws with the arguments
// `first "second argument" ''`, the variable THAWED_BY=runner, and the descriptors that each case needs (--fd).

#include "harness.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

CASE(arguments, "the report of a copy holds the arguments and the environment that thaw was given") {
    freeze_here();
    if (!copy)
        return;
    CHECK(report.arguments && report.environment);
    CHECK(strcmp(report.arguments[0], "first") == 0);
    CHECK(strcmp(report.arguments[1], "second argument") == 0);
    CHECK(strcmp(report.arguments[2], "") == 0);
    CHECK(!report.arguments[3]);
    int found = 0;
    for (int i = 0; report.environment[i]; i++)
        found += strcmp(report.environment[i], "THAWED_BY=runner") == 0;
    CHECK_EQUAL(found, 1);
    // getenv still has the frozen process's environment variables: the program must set the new ones itself.
    CHECK(!getenv("THAWED_BY"));
    CHECK(report.restore_ns > 0 && report.restore_ns < 20000000000u);
}

CASE(many_arguments, "a thousand arguments arrive completely in the copy") {
    freeze_here();
    if (!copy)
        return;
    int count = 0;
    while (report.arguments[count]) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, "argument %d", count);
        CHECK(strcmp(report.arguments[count], wanted) == 0);
        count++;
    }
    CHECK_EQUAL(count, 1000);
}

// The runner passes files. Each contains one line: the number of the descriptor that must be this file in the copy.
static void check_number(int fd) {
    char line[16] = "", wanted[16];
    snprintf(wanted, sizeof wanted, "%d\n", fd);
    CHECK(pread(fd, line, sizeof line - 1, 0) > 0);
    if (strcmp(line, wanted) != 0)
        dprintf(1, "descriptor %d is the file for %s", fd, line);
    CHECK(strcmp(line, wanted) == 0);
}

CASE(descriptors, "descriptors passed by --fd have the numbers of the frozen process, not those of the caller") {
    static const int32_t provided[] = {40, 41, 42, 500};
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(dup2(open("/dev/null", O_RDONLY), provided[i]), provided[i]);
    freeze_providing(provided, 4);
    for (int i = 0; copy && i < 4; i++)
        check_number(provided[i]);
}

CASE(socket_in_epoll, "an epoll set from before the freeze can watch a descriptor that is passed to the copy") {
    static const int32_t provided[] = {50};
    int ends[2], epoll = epoll_create1(EPOLL_CLOEXEC);
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_EQUAL(dup2(ends[0], 50), 50);
    close(ends[0]);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5}, got = {0};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, 50, &event), 0);
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    close(ends[1]);
    freeze_providing(provided, 1); // the copies get a pipe with a byte in it
    CHECK_EQUAL(epoll_wait(epoll, &got, 1, 5000), 1);
    CHECK_EQUAL(got.data.u64, 5);
    char byte;
    CHECK_EQUAL(read(50, &byte, 1), 1);
}

static void watch_passed(uint32_t events) {
    static const int32_t provided[] = {50};
    int epoll = epoll_create1(EPOLL_CLOEXEC), watched = eventfd(0, 0);
    CHECK_EQUAL(dup2(watched, 50), 50);
    close(watched);
    struct epoll_event event = {.events = events};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, 50, &event), 0);
    freeze_providing(provided, 1);
    CHECK(fcntl(50, F_GETFD) >= 0);
}

CASE(watched, "a passed descriptor may be of a kind that epoll cannot watch") {
    watch_passed(EPOLLIN);
}

CASE(watched_exclusively, "with EPOLLEXCLUSIVE, too, a passed descriptor may be of a kind that epoll cannot watch") {
    watch_passed(EPOLLIN | EPOLLEXCLUSIVE);
}

CASE(standard, "0, 1 and 2 may be passed by --fd too") {
    freeze_here();
    if (copy)
        check_number(0);
}
