// Runs in the process that is frozen. Tests the state of a process besides memory, threads and descriptors, and its
// children.

#include "harness.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

extern char **environ;

static int exit_status_of(pid_t child) {
    int status;
    CHECK(child > 0);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static size_t read_whole(const char *path, char *to, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    size_t done = 0;
    for (ssize_t got; (got = read(fd, to + done, room - 1 - done)) > 0;)
        done += (size_t)got;
    close(fd);
    to[done] = 0;
    return done;
}

CASE(folder_and_umask, "the working folder and the umask are unchanged") {
    char before[4096], after[4096];
    CHECK_EQUAL(mkdir("within", 0700), 0);
    CHECK_EQUAL(chdir("within"), 0);
    CHECK(getcwd(before, sizeof before));
    umask(027);
    freeze_here();
    CHECK(getcwd(after, sizeof after));
    CHECK(strcmp(before, after) == 0);
    CHECK_EQUAL(umask(0), 027);
}

CASE(command_line, "/proc shows the command line of the frozen program and the environment that was passed to thaw") {
    static char before[65536], after[65536], wanted[65536];
    size_t bytes = read_whole("/proc/self/cmdline", before, sizeof before);
    CHECK_EQUAL(setenv("SET_LATER", "is not in /proc", 1), 0);
    freeze_here();
    CHECK_EQUAL(read_whole("/proc/self/cmdline", after, sizeof after), bytes);
    CHECK_EQUAL(memcmp(before, after, bytes), 0);
    CHECK(strstr(after, "processes") && strcmp(after + strlen(after) + 1, "command_line") == 0);
    CHECK(strcmp(getenv("SET_LATER"), "is not in /proc") == 0);
    size_t wanted_bytes = 0;
    for (int i = 0; copy && report.environment[i]; i++) {
        strcpy(wanted + wanted_bytes, report.environment[i]);
        wanted_bytes += strlen(report.environment[i]) + 1;
    }
    bytes = read_whole("/proc/self/environ", after, sizeof after);
    CHECK(!copy || (bytes == wanted_bytes && memcmp(after, wanted, bytes) == 0));
}

CASE(process_name, "the process has the name of the frozen program, not that of thaw") {
    char before[16] = "", after[64] = "";
    CHECK_EQUAL(prctl(PR_GET_NAME, before), 0);
    freeze_here();
    CHECK(read_whole("/proc/self/comm", after, sizeof after) > 0);
    CHECK_EQUAL(strncmp(before, after, strlen(before)), 0);
}

CASE(forks, "children and grandchildren that a copy forks have all of its memory") {
    char *memory = map_anonymous(500);
    fill(memory, 500 * PAGE, 1);
    freeze_here();
    pid_t child = fork();
    if (child == 0) {
        CHECK(filled(memory, 500 * PAGE, 1));
        pid_t grandchild = fork();
        if (grandchild == 0) {
            struct worker worker = {.stop = true};
            start_worker(&worker, count_rounds);
            join_worker(&worker);
            _exit(filled(memory, 500 * PAGE, 1) && getppid() != 1 ? 4 : 1);
        }
        _exit(exit_status_of(grandchild) + 1);
    }
    CHECK_EQUAL(exit_status_of(child), 5);
}

static void fork_from_thread(struct worker *worker) {
    while (!worker->stop)
        rest();
    pid_t child = fork();
    if (child == 0)
        _exit(gettid() == getpid() ? 6 : 1);
    worker->rounds = exit_status_of(child);
}

CASE(forks_from_threads, "a thread from before the freeze can fork in the copy") {
    struct worker worker = {0}, other = {0};
    start_worker(&worker, fork_from_thread);
    start_worker(&other, count_rounds);
    freeze_here();
    stop_worker(&worker);
    CHECK_EQUAL(worker.rounds, 6);
    stop_worker(&other);
}

CASE(programs, "a copy starts other programs: by fork and exec, posix_spawn, system and popen") {
    freeze_here();
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 7", NULL);
        _exit(1);
    }
    CHECK_EQUAL(exit_status_of(child), 7);
    char *const arguments[] = {"sh", "-c", "exit 8", NULL};
    CHECK_EQUAL(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ), 0);
    CHECK_EQUAL(exit_status_of(child), 8);
    CHECK_EQUAL(WEXITSTATUS(system("exit 9")), 9);
    FILE *output = popen("echo hello", "re");
    CHECK(output);
    char line[16] = "";
    CHECK(fgets(line, sizeof line, output));
    CHECK(strcmp(line, "hello\n") == 0);
    CHECK_EQUAL(pclose(output), 0);
}

static void note_exit(void) {
    _exit(5);
}

CASE(exit_handlers, "exit runs the handlers that were registered before the freeze") {
    pid_t froze = getpid();
    CHECK_EQUAL(atexit(note_exit), 0);
    freeze_here();
    CHECK(!copy || getpid() != froze);
    pid_t child = fork();
    if (child == 0)
        exit(0);
    CHECK_EQUAL(exit_status_of(child), 5);
    dprintf(1, "pass\n"); // printed here, because the exit handler would end this process with status 5
    _exit(0);
}

static double seconds(const struct timespec *time) {
    return (double)time->tv_sec + (double)time->tv_nsec * 1e-9;
}

CASE(clocks, "wall clock and monotonic clocks are right: close to the results of system calls") {
    static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC,       CLOCK_MONOTONIC_RAW,
                                       CLOCK_BOOTTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI};
    struct timespec before, after, by_call;
    double frozen_at = now_s();
    freeze_here();
    CHECK(now_s() >= frozen_at);
    for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
        CHECK_EQUAL(clock_gettime(clocks[i], &before), 0);
        CHECK_EQUAL(syscall(SYS_clock_gettime, clocks[i], &by_call), 0);
        CHECK_EQUAL(clock_gettime(clocks[i], &after), 0);
        CHECK(seconds(&before) <= seconds(&by_call) && seconds(&by_call) <= seconds(&after) + 1e-6);
        CHECK(seconds(&after) - seconds(&before) < 2);
    }
    CHECK(labs(time(NULL) - (long)syscall(SYS_time, NULL)) <= 1);
}

CASE(vdso, "clocks are read without a system call: a reading takes at most 0.6 of the time of a system call") {
    freeze_here();
    struct timespec now;
    double start = now_s();
    for (int i = 0; i < 20000; i++)
        CHECK_EQUAL(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now), 0);
    double of_call = (now_s() - start) / 20000, best = 1;
    for (int attempt = 0; attempt < 10; attempt++) { // other processes may use the processor for a while
        start = now_s();
        for (int i = 0; i < 100000; i++)
            CHECK_EQUAL(clock_gettime(CLOCK_MONOTONIC, &now), 0);
        double each = (now_s() - start) / 100000;
        best = each < best ? each : best;
    }
    if (best > of_call * 0.6)
        dprintf(1, "%.0f ns a clock_gettime, %.0f ns a system call\n", best * 1e9, of_call * 1e9);
    CHECK(best <= of_call * 0.6);
    unsigned cpu = 1000, node;
    CHECK_EQUAL(getcpu(&cpu, &node), 0);
    CHECK(cpu < 1000);
}
