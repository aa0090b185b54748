// Runs in the process that is frozen. Tests descriptors that no copy could have: the freeze is refused, the refusal
// names the descriptor and says what to do, and the freeze works once the descriptor is closed.

#include "refusing.h"

#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>

// Expects a refusal while `fd` is open, and a freeze that works once `fd` is closed. The refusal must contain `thing`
// and `way_out`, and the number of the descriptor.
static void refused_while_open(int fd, const char *thing, const char *way_out) {
    char number[16];
    if (fd < 0)
        not_here(thing);
    begin();
    expect_refusal(thing, way_out);
    snprintf(number, sizeof number, "%d", fd);
    CHECK(runs_as("dry") || strstr(report.text, number));
    close(fd);
    freeze_after_all();
}

CASE(inotify, "an inotify watch is refused") {
    int fd = inotify_init1(0);
    CHECK(inotify_add_watch(fd, ".", IN_CREATE) >= 0);
    refused_while_open(fd, "inotify", "before the freeze");
}

CASE(fanotify, "a fanotify watch is refused") {
    refused_while_open(fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, 0), "fanotify", "before the freeze");
}

CASE(process_descriptor, "a pidfd is refused") {
    refused_while_open((int)syscall(SYS_pidfd_open, getpid(), 0), "process", "close it before the freeze");
}

CASE(userfault, "a userfaultfd is refused") {
    refused_while_open((int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), "userfaultfd",
                       "close it before the freeze");
}

CASE(performance_counter, "a performance counter is refused") {
    struct perf_event_attr attributes = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof attributes, .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1};
    refused_while_open((int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0), "performance counter",
                       "before the freeze");
}

CASE(terminal, "a terminal is refused as a device, and the refusal names it") {
    refused_while_open(open("/dev/ptmx", O_RDWR | O_NOCTTY), "/dev/p", "first invocation");
}

CASE(device, "a device of hardware is refused, and the refusal names it") {
    static const char *const paths[] = {"/dev/kvm", "/dev/fuse", "/dev/loop-control", "/dev/vsock"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int fd = open(paths[i], O_RDWR);
        if (fd >= 0) {
            refused_while_open(fd, paths[i], "first invocation");
            return;
        }
    }
    not_here("no device can be opened");
}

CASE(namespace, "a namespace is refused as unknown, and the refusal names it") {
    refused_while_open(open("/proc/self/ns/uts", O_RDONLY), "uts:", "close it before the freeze");
}

CASE(proc_of_another, "a file of /proc that belongs to another process is refused, and the refusal names it") {
    refused_while_open(open("/proc/1/status", O_RDONLY), "/proc/1/status", "before the freeze");
}

// Starts a process that is not a child of this one. Of the two ends of a pipe, only that process has `theirs` open, and
// only this one has `ours` open. That process exits when `ours` is closed.
static void give_away(int theirs, int ours) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            char byte;
            close(ours);
            (void)!read(theirs, &byte, 1);
        }
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    close(theirs);
}

CASE(pipe_of_another, "a pipe whose other end another process holds is refused") {
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    give_away(ends[0], ends[1]);
    refused_while_open(ends[1], "other end", "before the freeze");
}

CASE(named_pipe, "a named pipe is refused, and the refusal names it") {
    CHECK_EQUAL(mkfifo("named", 0600), 0);
    refused_while_open(open("named", O_RDWR), "/named", "close it before the freeze");
}

static int locked(bool by_flock, int command) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    int fd = make_file("locked", 1, 1);
    CHECK_EQUAL(by_flock ? flock(fd, LOCK_EX) : fcntl(fd, command, &lock), 0);
    return fd;
}

CASE(posix_lock, "a POSIX lock on a file is refused, and the refusal names the file") {
    refused_while_open(locked(false, F_SETLK), "/locked",
                       "holds a lock on a file, which no copy would hold; release it");
}

CASE(flock_lock, "a lock by flock is refused") {
    refused_while_open(locked(true, 0), "lock", "release it before the freeze");
}

CASE(open_file_lock, "a lock of an open file description is refused") {
    refused_while_open(locked(false, F_OFD_SETLK), "lock", "release it before the freeze");
}

CASE(lock_by_a_closed_number, "a lock is also refused if it was made through a descriptor that is closed by now") {
    int fd = locked(true, 0), twin = dup(fd);
    close(fd);
    refused_while_open(twin, "lock", "release it before the freeze");
}

CASE(watch_of_closed_number, "an epoll set that watches an open file whose descriptor was closed is refused") {
    int epoll = epoll_create1(0), event = eventfd(0, 0), twin = dup(event);
    struct epoll_event watch = {.events = EPOLLIN};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &watch), 0);
    close(event);
    begin();
    expect_refusal("epoll", "before the freeze");
    close(twin);
    freeze_after_all();
}

CASE(watch_of_reused_number, "an epoll set is refused if it watches an eventfd whose number another eventfd has now") {
    int epoll = epoll_create1(0), event = eventfd(0, 0), twin = dup(event);
    struct epoll_event watch = {.events = EPOLLIN};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &watch), 0);
    close(event);
    CHECK_EQUAL(eventfd(0, 0), event);
    begin();
    expect_refusal("epoll", "before the freeze");
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &watch), 0); // now the set has two watches of one number
    expect_refusal("epoll", "before the freeze");
    close(twin);
    freeze_after_all();
}
