// Runs in the process that is frozen. Tests memory, threads and other state that no copy could have, and paths to which
// no image can be written.

#include "refusing.h"

#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

CASE(writable_shared_file, "a writable shared mapping of a file is refused, and the refusal names the file") {
    int fd = make_file("database", 3, 1);
    char *memory = map_pages(3, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    begin();
    expect_refusal("/database", "before the freeze");
    CHECK_EQUAL(munmap(memory, 3 * PAGE), 0);
    freeze_after_all();
}

CASE(huge_pages, "a mapping of huge pages is refused") {
    char *memory =
        mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        not_here("huge pages cannot be mapped");
    begin();
    expect_refusal("huge pages", "before the freeze");
    CHECK_EQUAL(munmap(memory, 2 * MIB), 0);
    freeze_after_all();
}

CASE(kernel_memory, "a mapped io_uring without an open descriptor is refused") {
    struct io_uring_params parameters = {0};
    int fd = (int)syscall(SYS_io_uring_setup, 8, &parameters);
    if (fd < 0)
        not_here("io_uring is not allowed");
    char *memory = map_pages(1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
    close(fd);
    begin();
    expect_refusal("io_uring", "before the freeze");
    CHECK_EQUAL(munmap(memory, PAGE), 0);
    freeze_after_all();
}

CASE(secret_memory, "memory of memfd_secret is refused") {
    int fd = (int)syscall(SYS_memfd_secret, 0);
    if (fd < 0)
        not_here("memfd_secret is not allowed");
    CHECK_EQUAL(ftruncate(fd, PAGE), 0);
    char *memory = map_pages(1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memory[0] = 1;
    close(fd);
    begin();
    expect_refusal("secretmem", "before the freeze");
    CHECK_EQUAL(munmap(memory, PAGE), 0);
    freeze_after_all();
}

CASE(system_v_memory, "a System V shared memory segment is refused") {
    int id = shmget(IPC_PRIVATE, 4 * PAGE, IPC_CREAT | 0600);
    if (id < 0)
        not_here("there is no System V shared memory");
    char *memory = shmat(id, NULL, 0);
    CHECK(memory != MAP_FAILED);
    CHECK_EQUAL(shmctl(id, IPC_RMID, NULL), 0);
    begin();
    expect_refusal("System V", "before the freeze");
    CHECK_EQUAL(shmdt(memory), 0);
    freeze_after_all();
}

CASE(zone_of_thaw, "memory at addresses that thaw needs is refused") {
    char *place = (char *)0x3f0000000000;
    CHECK(mmap(place, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place);
    begin();
    expect_refusal("0x3f0000000000", "before the freeze");
    CHECK_EQUAL(munmap(place, PAGE), 0);
    freeze_after_all();
}

CASE(alarm_clock, "an alarm is refused") {
    begin();
    alarm(1000);
    expect_refusal("alarm", "before the freeze");
    CHECK(alarm(0) > 0);
    freeze_after_all();
}

CASE(interval_timer, "an interval timer of processor time, as profilers set it, is refused") {
    struct itimerval interval = {{1000, 0}, {1000, 0}}, none = {0};
    begin();
    CHECK_EQUAL(setitimer(ITIMER_PROF, &interval, NULL), 0);
    expect_refusal("interval timer", "before the freeze");
    CHECK_EQUAL(setitimer(ITIMER_PROF, &none, NULL), 0);
    freeze_after_all();
}

CASE(posix_timer, "a POSIX timer is refused") {
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    timer_t timer;
    begin();
    CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    expect_refusal("POSIX timer", "before the freeze");
    CHECK_EQUAL(timer_delete(timer), 0);
    freeze_after_all();
}

CASE(child_process, "a running child is refused; a child that has ended and was not waited for is not") {
    int status;
    char number[16];
    int ends[2]; // a pipe to the child, as pools of workers have: the refusal must name the child, not the pipe
    CHECK_EQUAL(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    CHECK_EQUAL(close(ends[0]), 0);
    begin();
    snprintf(number, sizeof number, "%d", child);
    expect_refusal("child", "before the freeze");
    CHECK(runs_as("dry") || strstr(report.text, number));
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    siginfo_t info;
    CHECK_EQUAL(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    freeze_after_all();
    CHECK_EQUAL(waitpid(child, &status, 0), copy ? -1 : child);
}

static _Atomic int taken;

static void take(int number) {
    taken += number;
}

CASE(pending_signal, "a signal that is blocked and pending for the process is refused, and the refusal names it") {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    signal(SIGUSR2, take);
    CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    begin();
    CHECK_EQUAL(kill(getpid(), SIGUSR2), 0);
    expect_refusal("pending", "before the freeze");
    CHECK(runs_as("dry") || strstr(report.text, "12"));
    CHECK_EQUAL(pthread_sigmask(SIG_UNBLOCK, &set, NULL), 0);
    CHECK_EQUAL(taken, SIGUSR2);
    freeze_after_all();
}

static void block_one_signal(struct worker *worker) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    worker->rounds = 1;
    while (!worker->stop)
        rest();
    CHECK_EQUAL(taken, 0);
    CHECK_EQUAL(pthread_sigmask(SIG_UNBLOCK, &set, NULL), 0);
    CHECK_EQUAL(taken, SIGUSR1);
}

CASE(pending_for_a_thread, "a signal that is blocked and pending for one thread is refused") {
    struct worker worker = {0};
    signal(SIGUSR1, take);
    start_worker(&worker, block_one_signal);
    WAIT_UNTIL(worker.rounds == 1);
    begin();
    CHECK_EQUAL(pthread_kill(worker.thread, SIGUSR1), 0);
    expect_refusal("pending", "before the freeze");
    stop_worker(&worker);
    freeze_after_all();
}

static void block_all_by_call(struct worker *worker) {
    uint64_t all = ~UINT64_C(0), none = 0;
    CHECK_EQUAL(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8), 0);
    worker->rounds = 1;
    while (!worker->stop)
        rest();
    CHECK_EQUAL(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8), 0);
}

CASE(unparkable_thread, "a thread that blocks signal 33 by the raw system call is refused, and the refusal names it") {
    struct worker worker = {0};
    park_timeout_ms = 200;
    start_worker(&worker, block_all_by_call);
    CHECK_EQUAL(pthread_setname_np(worker.thread, "deaf one"), 0);
    WAIT_UNTIL(worker.rounds == 1);
    begin();
    // The engine's handler of signal 33 stays installed, because the blocked signal can still arrive. So this does not
    // call expect_refusal, which checks that the handler is removed.
    if (!runs_as("dry")) {
        CHECK_EQUAL(freeze_to(image_path, NULL, 0), FREEZE_REFUSED);
        dprintf(1, "refused: %s\n", report.text);
        CHECK(strstr(report.text, "deaf one") && strstr(report.text, "Start it after"));
        CHECK_EQUAL(access(image_path, F_OK), -1);
        check_goes_on(&bystander);
    }
    stop_worker(&worker);
    park_timeout_ms = 0;
    CHECK_EQUAL(setgid(getgid()), 0); // glibc sends signal 33 to all threads for this call
    freeze_after_all();
}

CASE(caller_blocks_signal, "a freeze from a thread that blocks signal 33 by the raw system call is refused") {
    uint64_t bit = UINT64_C(1) << 32;
    begin();
    CHECK_EQUAL(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &bit, NULL, 8), 0);
    if (!runs_as("dry")) {
        CHECK_EQUAL(freeze_to(image_path, NULL, 0), FREEZE_REFUSED);
        dprintf(1, "refused: %s\n", report.text);
        CHECK(strstr(report.text, "blocks signal 33") && strstr(report.text, "another"));
        check_goes_on(&bystander);
    }
    CHECK_EQUAL(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &bit, NULL, 8), 0);
    freeze_after_all();
}

static void refuse_without_main(struct worker *worker) {
    WAIT_UNTIL(worker->stop);
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    do { // wait until the main thread is a zombie
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        CHECK(read(fd, line, sizeof line - 1) > 0);
        close(fd);
    } while (!strstr(line, ") Z"));
    expect_refusal("main thread", "keep it running");
    dprintf(1, "pass\n");
    _exit(0);
}

CASE(main_ended, "a process whose main thread has ended is refused") {
    static struct worker worker;
    start_worker(&worker, refuse_without_main);
    worker.stop = true;
    pthread_exit(NULL);
}

CASE(folder_removed, "a working folder that was removed is refused") {
    CHECK_EQUAL(mkdir("gone", 0700), 0);
    CHECK_EQUAL(chdir("gone"), 0);
    CHECK_EQUAL(rmdir("../gone"), 0);
    begin();
    expect_refusal("working folder", "before the freeze");
    CHECK_EQUAL(chdir("/"), 0);
    freeze_after_all();
}

CASE(no_folder, "a freeze to a folder that does not exist fails, and the error says so") {
    begin();
    expect_no_freeze("missing/folder/image", FREEZE_FAILED, "missing/folder", "folder");
    CHECK(runs_as("dry") || report.error == ENOENT);
    freeze_after_all();
}

CASE(not_writable, "a freeze to a folder that cannot be written to fails, and the error says so") {
    begin();
    expect_no_freeze("/proc/self/image", FREEZE_FAILED, "/proc/self/image", "folder");
    freeze_after_all();
}

CASE(file_too_large, "a limit on the size of files ends the freeze by an error, not by a signal, and leaves no file") {
    struct rlimit limit, small;
    CHECK_EQUAL(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 3 * MIB;
    void *memory = malloc(8 * MIB);
    fill(memory, 8 * MIB, 1);
    begin();
    CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    expect_no_freeze(image_path, FREEZE_FAILED, "image", "space");
    CHECK(runs_as("dry") || report.error == EFBIG);
    CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &limit), 0);
    freeze_after_all();
    CHECK(filled(memory, 8 * MIB, 1));
}

static void write_line(const char *path, const char *line) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, line, strlen(line));
        close(fd);
    }
}

CASE(disk_full, "a full disk ends the freeze by an error and leaves no file") {
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %d 1", (int)getuid());
    snprintf(groups, sizeof groups, "0 %d 1", (int)getgid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        not_here("there are no user namespaces");
    write_line("/proc/self/setgroups", "deny");
    write_line("/proc/self/uid_map", users);
    write_line("/proc/self/gid_map", groups);
    CHECK_EQUAL(mkdir("small", 0700), 0);
    if (mount("none", "small", "tmpfs", 0, "size=4m") != 0)
        not_here("a small file system cannot be mounted");
    void *memory = malloc(8 * MIB);
    fill(memory, 8 * MIB, 1);
    begin();
    expect_no_freeze("small/image", FREEZE_FAILED, "image", "space");
    CHECK(runs_as("dry") || report.error == ENOSPC);
    CHECK_EQUAL(count_entries("small"), 2); // . and ..
    CHECK_EQUAL(umount("small"), 0);
    CHECK(filled(memory, 8 * MIB, 1));
    stop_worker(&bystander);
}

static void freeze_five_times(struct worker *worker) {
    char path[4096];
    struct freeze_report own = {.bytes = sizeof own};
    struct freeze_request request = {.bytes = sizeof request, .path = path};
    snprintf(path, sizeof path, "%s.%ld", image_path, worker->index);
    for (int images = 0; images < 5;) {
        int result = thawd_freeze(&request, &own);
        CHECK(result == FREEZE_FROZEN || (result == FREEZE_REFUSED && strstr(own.text, "another thread is freezing")));
        images += result == FREEZE_FROZEN;
    }
}

CASE(two_at_once, "if two threads freeze at the same time, each gets an image or a refusal, and both continue") {
    struct worker workers[2] = {{.index = 0}, {.index = 1}};
    begin();
    if (!runs_as("dry")) {
        start_worker(&workers[0], freeze_five_times);
        start_worker(&workers[1], freeze_five_times);
        join_worker(&workers[0]);
        join_worker(&workers[1]);
        check_goes_on(&bystander);
    }
    freeze_after_all();
}

CASE(bad_request, "a request of another version of the interface is refused") {
    struct freeze_request request = {.bytes = 8, .path = image_path};
    report = (struct freeze_report){.bytes = sizeof report};
    begin();
    if (!runs_as("dry")) {
        CHECK(thawd_freeze(&request, &report) < 0);
        dprintf(1, "refused: %s\n", report.text);
        CHECK(strstr(report.text, "request"));
    }
    freeze_after_all();
}
