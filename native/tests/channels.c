// Runs in the process that is frozen. Tests pipes, eventfds, epoll sets and socket pairs within the process.

#include "harness.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static bool readable(int fd) {
    struct pollfd watch = {.fd = fd, .events = POLLIN};
    CHECK(poll(&watch, 1, 0) >= 0);
    return watch.revents & POLLIN;
}

CASE(pipes, "a pipe keeps its contents, its capacity and its flags") {
    int ends[2], empty[2], full[2];
    char text[16] = "", page[PAGE];
    CHECK_EQUAL(pipe2(ends, O_CLOEXEC), 0);
    CHECK_EQUAL(pipe2(empty, O_NONBLOCK), 0);
    CHECK_EQUAL(pipe(full), 0);
    CHECK_EQUAL(write(ends[1], "some contents", 13), 13);
    CHECK_EQUAL(fcntl(full[1], F_SETPIPE_SZ, 4 * PAGE), 4 * PAGE);
    for (int i = 0; i < 4; i++) {
        fill(page, PAGE, (uint64_t)i);
        CHECK_EQUAL(write(full[1], page, PAGE), PAGE);
    }
    freeze_here();
    int waiting = 0;
    CHECK_EQUAL(ioctl(ends[0], FIONREAD, &waiting), 0);
    CHECK_EQUAL(waiting, 13);
    CHECK_EQUAL(read(ends[0], text, 5), 5);
    CHECK(strcmp(text, "some ") == 0);
    CHECK_EQUAL(write(ends[1], "!", 1), 1);
    CHECK_EQUAL(read(ends[0], text, 16), 9);
    CHECK_EQUAL(memcmp(text, "contents!", 9), 0);
    CHECK_EQUAL(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
    CHECK_EQUAL(fcntl(empty[0], F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    CHECK_EQUAL(read(empty[0], text, 1), -1);
    CHECK_EQUAL(errno, EAGAIN);
    CHECK_EQUAL(fcntl(full[0], F_GETPIPE_SZ), 4 * PAGE);
    CHECK_EQUAL(fcntl(full[1], F_SETFL, O_NONBLOCK), 0);
    CHECK_EQUAL(write(full[1], "x", 1), -1);
    CHECK_EQUAL(errno, EAGAIN);
    for (int i = 0; i < 4; i++) {
        CHECK_EQUAL(read(full[0], page, PAGE), PAGE);
        CHECK(filled(page, PAGE, (uint64_t)i));
    }
    CHECK_EQUAL(close(ends[1]), 0);
    CHECK_EQUAL(read(ends[0], text, 1), 0); // no writing end is open any more
}

CASE(shared_ends, "ends of a pipe that were duplicated still belong to one pipe") {
    int ends[2];
    char byte = 0;
    CHECK_EQUAL(pipe(ends), 0);
    int reader = dup(ends[0]), writer = fcntl(ends[1], F_DUPFD, 100);
    CHECK_EQUAL(close(ends[1]), 0);
    CHECK_EQUAL(write(writer, "ab", 2), 2);
    freeze_here();
    CHECK(read(reader, &byte, 1) == 1 && byte == 'a');
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'b');
    CHECK_EQUAL(close(writer), 0);
    CHECK_EQUAL(read(reader, &byte, 1), 0);
}

CASE(opened_again, "a pipe of which one end was opened again through /proc contains its data only once") {
    int ends[2];
    char path[64], text[8] = "";
    CHECK_EQUAL(pipe(ends), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    int again = open(path, O_RDONLY | O_NONBLOCK);
    CHECK(again >= 0);
    CHECK_EQUAL(write(ends[1], "once", 4), 4);
    freeze_here();
    CHECK_EQUAL(close(ends[1]), 0);
    CHECK_EQUAL(read(ends[0], text, 3), 3);
    CHECK_EQUAL(read(again, text + 3, 5), 1);
    CHECK(strcmp(text, "once") == 0);
    CHECK_EQUAL(read(ends[0], text, 8), 0);
}

static void watch(int epoll, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
}

// Returns the data of all watches that are ready now, combined by OR.
static uint64_t ready(int epoll) {
    struct epoll_event events[8];
    int count = epoll_wait(epoll, events, 8, 0);
    CHECK(count >= 0);
    uint64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum |= events[i].data.u64;
    return sum;
}

CASE(duplicates, "duplicates of an eventfd, an epoll set and a socket still share one open file") {
    int event = eventfd(0, EFD_NONBLOCK), event_twin = dup(event), epoll = epoll_create1(0), epoll_twin = dup(epoll);
    int other = eventfd(0, EFD_NONBLOCK), pair[2];
    char byte = 0;
    uint64_t value = 0;
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    int pair_twin = fcntl(pair[0], F_DUPFD, 200);
    freeze_here();
    CHECK_EQUAL(eventfd_write(event_twin, 5), 0);
    CHECK_EQUAL(eventfd_read(other, &value), -1);
    CHECK_EQUAL(eventfd_read(event, &value), 0);
    CHECK_EQUAL(value, 5);
    CHECK_EQUAL(eventfd_write(event, 1), 0);
    watch(epoll, event, EPOLLIN, 3);
    CHECK_EQUAL(ready(epoll_twin), 3);
    CHECK_EQUAL(write(pair[1], "x", 1), 1);
    CHECK_EQUAL(read(pair_twin, &byte, 1), 1);
    CHECK_EQUAL(byte, 'x');
    CHECK_EQUAL(close(pair[0]), 0);
    CHECK_EQUAL(write(pair_twin, "y", 1), 1);
    CHECK_EQUAL(read(pair[1], &byte, 1), 1);
    CHECK_EQUAL(close(pair_twin), 0);
    CHECK_EQUAL(read(pair[1], &byte, 1), 0);
}

CASE(half_closed, "a pipe with a closed writing end still reports its end after its contents") {
    int ends[2], broken[2];
    char text[8];
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_EQUAL(pipe(broken), 0);
    CHECK_EQUAL(write(ends[1], "last", 4), 4);
    close(ends[1]);
    close(broken[0]);
    signal(SIGPIPE, SIG_IGN);
    freeze_here();
    CHECK_EQUAL(read(ends[0], text, 8), 4);
    CHECK_EQUAL(read(ends[0], text, 8), 0);
    CHECK_EQUAL(write(broken[1], "x", 1), -1);
    CHECK_EQUAL(errno, EPIPE);
}

CASE(eventfds, "eventfds keep their count and whether they are semaphores") {
    int counts = eventfd(41, EFD_NONBLOCK), semaphore = eventfd(3, EFD_SEMAPHORE | EFD_CLOEXEC), zero = eventfd(0, 0);
    freeze_here();
    uint64_t value = 0;
    CHECK_EQUAL(eventfd_write(counts, 1), 0);
    CHECK_EQUAL(eventfd_read(counts, &value), 0);
    CHECK_EQUAL(value, 42);
    CHECK_EQUAL(eventfd_read(counts, &value), -1);
    CHECK_EQUAL(errno, EAGAIN);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(eventfd_read(semaphore, &value), 0);
        CHECK_EQUAL(value, 1);
    }
    CHECK(!readable(semaphore) && !readable(zero));
    CHECK_EQUAL(fcntl(semaphore, F_GETFD), FD_CLOEXEC);
}

CASE(epoll_sets, "epoll sets keep their watches: events, data, edge-triggered and one-shot") {
    int epoll = epoll_create1(EPOLL_CLOEXEC), ends[2];
    int level = eventfd(0, 0), edge = eventfd(0, 0), once = eventfd(0, 0), muted = eventfd(1, 0);
    CHECK_EQUAL(pipe(ends), 0);
    watch(epoll, level, EPOLLIN, 1);
    watch(epoll, edge, EPOLLIN | EPOLLET, 2);
    watch(epoll, once, EPOLLIN | EPOLLONESHOT, 4);
    watch(epoll, muted, EPOLLIN | EPOLLONESHOT, 8);
    watch(epoll, ends[1], EPOLLOUT | EPOLLET, 0xffff000000000010);
    CHECK_EQUAL(ready(epoll), 0xffff000000000018); // the one-shot watch of `muted` is used up now
    freeze_here();
    ready(epoll); // an edge-triggered watch that is added again reports once more, which epoll(7) allows
    CHECK_EQUAL(ready(epoll), 0);
    CHECK_EQUAL(eventfd_write(level, 1), 0);
    CHECK_EQUAL(eventfd_write(edge, 1), 0);
    CHECK_EQUAL(eventfd_write(once, 1), 0);
    CHECK_EQUAL(ready(epoll), 7);
    CHECK_EQUAL(ready(epoll), 1);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 32};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_MOD, muted, &event), 0);
    CHECK_EQUAL(ready(epoll), 1 | 32);
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[1], NULL), 0);
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, level, &event), -1);
    CHECK_EQUAL(errno, EEXIST);
    CHECK_EQUAL(fcntl(epoll, F_GETFD), FD_CLOEXEC);
}

CASE(epoll_in_epoll, "an epoll set that watches another epoll set still reports it as ready") {
    int outer = epoll_create1(0), inner = epoll_create1(0), event = eventfd(0, 0);
    watch(outer, inner, EPOLLIN, 1);
    watch(inner, event, EPOLLIN, 2);
    freeze_here();
    CHECK_EQUAL(ready(outer), 0);
    CHECK_EQUAL(eventfd_write(event, 1), 0);
    CHECK_EQUAL(ready(outer), 1);
    CHECK_EQUAL(ready(inner), 2);
}

CASE(socket_pair, "a socket pair within the process connects its ends") {
    int ends[2];
    char text[8];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    CHECK_EQUAL(fcntl(ends[1], F_SETFL, O_RDWR | O_NONBLOCK), 0);
    freeze_here();
    CHECK_EQUAL(write(ends[0], "ping", 4), 4);
    CHECK_EQUAL(read(ends[1], text, 8), 4);
    CHECK_EQUAL(write(ends[1], "back", 4), 4);
    CHECK_EQUAL(read(ends[0], text, 8), 4);
    CHECK_EQUAL(memcmp(text, "back", 4), 0);
    CHECK_EQUAL(read(ends[1], text, 1), -1);
    CHECK_EQUAL(errno, EAGAIN);
    CHECK_EQUAL(fcntl(ends[0], F_GETFD), FD_CLOEXEC);
    close(ends[0]);
    CHECK_EQUAL(read(ends[1], text, 1), 0);
}
