// Runs in the process that is frozen. Tests timerfd, signalfd and inotify without watches.

#include "harness.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static void set_timer(int fd, int flags, long value_ns, long interval_ns) {
    struct itimerspec when = {.it_value = {value_ns / 1000000000, value_ns % 1000000000},
                              .it_interval = {interval_ns / 1000000000, interval_ns % 1000000000}};
    CHECK_EQUAL(timerfd_settime(fd, flags, &when, NULL), 0);
}

static uint64_t read_ticks(int fd) {
    uint64_t ticks = 0;
    ssize_t got;
    while ((got = read(fd, &ticks, sizeof ticks)) < 0 && errno == EINTR)
        ;
    return got == sizeof ticks ? ticks : 0;
}

static struct itimerspec left(int fd) {
    struct itimerspec when;
    CHECK_EQUAL(timerfd_gettime(fd, &when), 0);
    return when;
}

CASE(timer, "a timer expires at its time; if that has passed, it expires once; an unset timer does not expire") {
    int soon = timerfd_create(CLOCK_MONOTONIC, 0), late = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    int never = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK), fired = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK);
    uint64_t ticks;
    set_timer(soon, 0, 50000000, 0);
    set_timer(late, 0, 1000000000000, 3000000000);
    set_timer(fired, 0, 1, 0);
    struct pollfd watch = {.fd = fired, .events = POLLIN};
    CHECK_EQUAL(poll(&watch, 1, DEADLINE_S * 1000), 1);
    freeze_here();
    CHECK_EQUAL(read_ticks(soon), 1);
    CHECK_EQUAL(read(never, &ticks, sizeof ticks), -1);
    CHECK_EQUAL(errno, EAGAIN);
    CHECK_EQUAL(poll(&watch, 1, DEADLINE_S * 1000), 1);
    CHECK_EQUAL(read_ticks(fired), 1);
    struct itimerspec then = left(late);
    CHECK(then.it_value.tv_sec > 800 && then.it_value.tv_sec <= 1000);
    CHECK_EQUAL(then.it_interval.tv_sec, 3);
    CHECK_EQUAL(fcntl(late, F_GETFD), FD_CLOEXEC);
}

CASE(ticking, "a periodic timer continues to expire") {
    int fd = timerfd_create(CLOCK_MONOTONIC, 0), epoll = epoll_create1(0);
    set_timer(fd, 0, 1000000, 100000000);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
    CHECK(read_ticks(fd) > 0);
    freeze_here();
    CHECK_EQUAL(epoll_wait(epoll, &event, 1, DEADLINE_S * 1000), 1);
    CHECK(read_ticks(fd) > 0 && read_ticks(fd) > 0);
}

static void await_tick(struct worker *worker) {
    worker->rounds = read_ticks((int)worker->index) ? 1 : -1;
}

CASE(timer_wait, "a timer that is set in the copy wakes a thread that waited for it at the freeze") {
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    set_timer(fd, 0, 1000000000000, 0);
    struct worker worker = {.index = fd};
    start_blocked_worker(&worker, await_tick, SYS_read);
    freeze_here();
    CHECK_EQUAL(worker.rounds, 0);
    set_timer(fd, 0, 1, 0);
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 1);
}

CASE(signal_descriptor, "a signalfd receives the same signals as before") {
    sigset_t set;
    struct signalfd_siginfo info;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN + 3);
    CHECK_EQUAL(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    freeze_here();
    CHECK_EQUAL(read(fd, &info, sizeof info), -1);
    CHECK_EQUAL(errno, EAGAIN);
    CHECK_EQUAL(kill(getpid(), SIGRTMIN + 3), 0);
    CHECK_EQUAL(read(fd, &info, sizeof info), sizeof info);
    CHECK_EQUAL(info.ssi_signo, SIGRTMIN + 3);
    CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
}

CASE(inotify_without_watches, "watches can be added to an inotify descriptor that had none") {
    int fd = inotify_init1(IN_NONBLOCK);
    char events[512];
    freeze_here();
    CHECK(inotify_add_watch(fd, ".", IN_CREATE) >= 0);
    int made = open("made", O_CREAT | O_WRONLY, 0600);
    CHECK(made >= 0 || errno == EEXIST);
    int again = open("made-anew", O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (again >= 0)
        CHECK(read(fd, events, sizeof events) > 0);
}
