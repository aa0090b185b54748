// Runs in the process that is frozen. Every test program in this folder includes this file, which has its main function
// and the helpers of its cases. A case looks like this:
//
//     CASE(name, "the claim that the case tests") {
//         prepare some state of the kernel or the C library
//         freeze_here();
//         CHECK that the state is still there
//     }
//
// `PROGRAM CASE IMAGE` runs one case, in a folder that no other case uses. The process that was frozen prints `frozen`
// and waits to be killed. Each copy thawed from the image runs the checks, prints `pass` or `FAIL file:line why`, and
// exits with 0 or 1. The runner, the tests in tests/native, finds the cases by the first line of each CASE.
//
// Environment variables change what happens. With THAWD_TEST=goes-on, the original runs the checks, too, because a
// freeze must not harm it. With THAWD_TEST=dry, nothing is frozen, which shows that the checks pass without a freeze.
// FREEZE_FLAGS is a number whose bits are those of enum freeze_flag. FREEZE_FAIL_AT names a fault point, at which the
// freeze fails.

#ifndef THAWD_TESTS_HARNESS_H
#define THAWD_TESTS_HARNESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "../freeze.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1024ul * 1024)
#define DEADLINE_S 20

struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
};

static struct test_case *all_cases;
static bool copy;              // true in a thawed copy
static const char *image_path; // path to which freeze_here writes
static struct freeze_report report;

#define CASE(name, claim)                                                                                              \
    static void name(void);                                                                                            \
    __attribute__((constructor)) static void register_##name(void) {                                                   \
        static struct test_case self = {#name, name, NULL};                                                            \
        self.next = all_cases;                                                                                         \
        all_cases = &self;                                                                                             \
    }                                                                                                                  \
    _Static_assert(sizeof(claim) > 10, "a case says what it claims");                                                  \
    static void name(void)

_Noreturn static inline void fail(const char *file, int line, const char *why, long got, long expected) {
    const char *name = strrchr(file, '/');
    dprintf(1, "FAIL %s:%d %s", name ? name + 1 : file, line, why);
    if (got != expected)
        dprintf(1, " (got %ld = 0x%lx, expected %ld = 0x%lx)", got, got, expected, expected);
    dprintf(1, " [errno %d: %s]\n", errno, strerror(errno));
    _exit(1);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail(__FILE__, __LINE__, #condition, 0, 0);                                                                \
    } while (0)
#define CHECK_EQUAL(value, wanted)                                                                                     \
    do {                                                                                                               \
        long got_ = (long)(value), wanted_ = (long)(wanted);                                                           \
        if (got_ != wanted_)                                                                                           \
            fail(__FILE__, __LINE__, #value " == " #wanted, got_, wanted_);                                            \
    } while (0)

static int32_t started_filters;  // number of seccomp filters that this program was started under
static uint32_t park_timeout_ms; // how long a freeze waits until all threads have stopped; 0: the engine's default
static uint32_t freeze_flags;    // flags for the freeze, in addition to those in FREEZE_FLAGS
static const int32_t *any_port;  // this and the next variable: see struct freeze_request
static uint32_t any_port_count;

// Freezes this process, with the flags in FREEZE_FLAGS and `freeze_flags`.
static inline int freeze_to(const char *path, const int32_t *provided, uint32_t provided_count) {
    const char *flags = getenv("FREEZE_FLAGS");
    struct freeze_request request = {
        .bytes = sizeof request,
        .flags = freeze_flags | (flags ? (uint32_t)atoi(flags) : 0),
        .path = path,
        .provided = provided,
        .provided_count = provided_count,
        .park_timeout_ms = park_timeout_ms,
        .fail_at = getenv("FREEZE_FAIL_AT"),
        .any_port = any_port,
        .any_port_count = any_port_count,
        .seccomp_filters = started_filters,
    };
    report = (struct freeze_report){.bytes = sizeof report};
    return thawd_freeze(&request, &report);
}

static inline bool runs_as(const char *mode) {
    const char *wanted = getenv("THAWD_TEST");
    return strcmp(wanted ? wanted : "killed", mode) == 0;
}

// Freezes this process to `image_path`. Returns only in processes that must run the checks: in a copy, in an original
// with THAWD_TEST=goes-on, and with THAWD_TEST=dry. `provided` are the numbers of descriptors that the runner passes to
// each copy.
static inline void freeze_providing(const int32_t *provided, uint32_t provided_count) {
    if (runs_as("dry"))
        return;
    bool goes_on = runs_as("goes-on");
    int result = freeze_to(image_path, provided, provided_count);
    if (result == FREEZE_THAWED) {
        copy = true;
        return;
    }
    if (result != FREEZE_FROZEN) {
        dprintf(1, "FAIL freeze at %s: %s [errno %d: %s]\n", report.stage, report.text, report.error,
                strerror(report.error));
        _exit(1);
    }
    dprintf(1, "frozen\n");
    while (!goes_on)
        pause();
}

static inline void freeze_here(void) {
    freeze_providing(NULL, 0);
}

// Ends a case that cannot be tested on this machine. The runner reports the case as skipped, with the reason `why`.
_Noreturn static inline void not_here(const char *why) {
    dprintf(1, "not here: %s [errno %d: %s]\n", why, errno, strerror(errno));
    _exit(77);
}

static inline double now_s(void) {
    struct timespec now;
    CHECK_EQUAL(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// The time `ms` milliseconds from now, in the form that pthread_cond_timedwait and sem_timedwait take.
static inline struct timespec from_now_ms(clockid_t clock, long ms) {
    struct timespec at;
    CHECK_EQUAL(clock_gettime(clock, &at), 0);
    at.tv_sec += ms / 1000;
    at.tv_nsec += ms % 1000 * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

// Lets other threads use the processor for a moment. Every loop calls this that waits for something, or that runs only
// to show that its thread continues. Threads that the freeze must stop in the middle of a computation do not call it.
static inline void rest(void) {
    int kept = errno;
    usleep(200);
    errno = kept;
}

// Checks `condition` repeatedly until it is true; fails after DEADLINE_S.
#define WAIT_UNTIL(condition)                                                                                          \
    do {                                                                                                               \
        double end_ = now_s() + DEADLINE_S;                                                                            \
        for (int looks_ = 0; !(condition); looks_++) {                                                                 \
            if (now_s() > end_)                                                                                        \
                fail(__FILE__, __LINE__, "in time: " #condition, 0, 0);                                                \
            if (looks_ < 20)                                                                                           \
                sched_yield();                                                                                         \
            else                                                                                                       \
                rest();                                                                                                \
        }                                                                                                              \
    } while (0)

// Call this function in a process that must outlive the process that was frozen. It writes the caller's process id to
// the file `outlives`, so that the runner kills the caller after the case. It replaces the standard streams by
// /dev/null, because the runner reads the output of a case until no process has it open.
static inline void outlive(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), file = open("outlives", O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(null >= 0 && file >= 0);
    CHECK(dprintf(file, "%d", getpid()) > 0);
    for (int stream = 0; stream <= 2; stream++)
        CHECK_EQUAL(dup2(null, stream), stream);
    close(null);
    close(file);
}

// Returns the number of the system call in which thread `tid` of this process is blocked; -1 if the thread is running.
static inline long blocked_in(int tid) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return text[0] == 'r' ? -1 : atol(text);
}

// A thread of a case.
struct worker {
    pthread_t thread;
    void (*run)(struct worker *);
    _Atomic int tid;    // gettid() at its start
    _Atomic int rounds; // how often the thread has repeated its work, or another result of it
    _Atomic bool stop;  // the thread should end
    long index;         // for the function of the thread
    void *data;         // for the function of the thread
};

static inline void *worker_main(void *argument) {
    struct worker *worker = argument;
    worker->tid = gettid();
    worker->run(worker);
    return worker;
}

static inline void start_worker(struct worker *worker, void (*run)(struct worker *)) {
    worker->run = run;
    CHECK_EQUAL(pthread_create(&worker->thread, NULL, worker_main, worker), 0);
    WAIT_UNTIL(worker->tid);
}

static inline void start_blocked_worker(struct worker *worker, void (*run)(struct worker *), long system_call) {
    start_worker(worker, run);
    WAIT_UNTIL(blocked_in(worker->tid) == system_call);
}

static inline void join_worker(struct worker *worker) {
    void *result = NULL;
    struct timespec end = from_now_ms(CLOCK_REALTIME, DEADLINE_S * 1000);
    CHECK_EQUAL(pthread_timedjoin_np(worker->thread, &result, &end), 0);
    CHECK(result == worker);
}

// The function of a thread whose counter `rounds` shows that it continues.
static inline void count_rounds(struct worker *worker) {
    while (!worker->stop) {
        if (++worker->rounds % 16)
            sched_yield();
        else
            rest();
    }
}

static inline void check_goes_on(struct worker *worker) {
    int before = worker->rounds;
    WAIT_UNTIL(worker->rounds != before);
}

static inline void stop_worker(struct worker *worker) {
    worker->stop = true;
    join_worker(worker);
}

// `fill` fills memory with bytes that depend on the seed and the position; `filled` checks that they are unchanged.
static inline void fill(void *memory, size_t bytes, uint64_t seed) {
    uint64_t *words = memory;
    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = (seed + i) * UINT64_C(0x9e3779b97f4a7c15) | 1;
}

static inline bool filled(const void *memory, size_t bytes, uint64_t seed) {
    const uint64_t *words = memory;
    for (size_t i = 0; i < bytes / 8; i++)
        if (words[i] != ((seed + i) * UINT64_C(0x9e3779b97f4a7c15) | 1))
            return false;
    return true;
}

static inline bool zeros(const void *memory, size_t bytes) {
    const unsigned char *at = memory;
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

static inline char *map_pages(size_t pages, int protection, int flags, int fd, off_t offset) {
    char *at = mmap(NULL, pages * PAGE, protection, flags, fd, offset);
    CHECK(at != MAP_FAILED);
    return at;
}

static inline char *map_anonymous(size_t pages) {
    return map_pages(pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Makes a file in the case's folder with `pages` pages of what `fill` writes for `seed`. Returns its descriptor.
static inline int make_file(const char *name, size_t pages, uint64_t seed) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    void *contents = malloc(pages * PAGE + 1);
    CHECK(contents);
    fill(contents, pages * PAGE, seed);
    CHECK_EQUAL(write(fd, contents, pages * PAGE), pages * PAGE);
    free(contents);
    return fd;
}

// Returns the number after `name` in a file of /proc about this process or one of its threads; -1 if `name` is not
// there.
static inline long status_number(const char *path, const char *name, int base) {
    static __thread char status[16384];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    ssize_t bytes = read(fd, status, sizeof status - 1);
    CHECK(bytes > 0);
    close(fd);
    status[bytes] = 0;
    const char *line = strstr(status, name);
    return line ? strtol(line + strlen(name), NULL, base) : -1;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        dprintf(2, "usage: %s CASE IMAGE\n", argv[0]);
        return 2;
    }
    image_path = argv[2];
    started_filters = (int32_t)status_number("/proc/self/status", "\nSeccomp_filters:", 10);
    for (struct test_case *test = all_cases; test; test = test->next) {
        if (strcmp(test->name, argv[1]) == 0) {
            test->run();
            dprintf(1, "pass\n");
            return 0;
        }
    }
    dprintf(2, "no such case: %s\n", argv[1]);
    return 2;
}

#endif
