// Runs in the process that is frozen. What every test program in this folder is made of.
//
//     CASE(name, "what is claimed") {
//         prepare some state of the kernel or the C library
//         freeze_here();
//         CHECK that it is all there
//     }
//
// `PROGRAM CASE IMAGE` runs one case in the current folder, which is the case's own. The process that froze says
// `frozen` and waits to be killed; each copy thawed from the image runs the checks, says `pass` or `FAIL file:line
// why`, and exits with 0 or 1. The environment changes that: THAWD_TEST=goes-on lets the original run the checks too,
// since a freeze must not harm it; THAWD_TEST=dry skips the freeze, to see that the checks hold without it.
// FREEZE_FLAGS is a number of enum freeze_flag, FREEZE_FAIL_AT a fault point. tests/native reads the cases from the
// sources by their first line.

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
static const char *image_path; // where freeze_here writes
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

static int32_t started_filters;  // seccomp filters that this program was started under
static uint32_t park_timeout_ms; // of the freezes of this program; 0: the engine's own
static uint32_t freeze_flags;    // beside those that the environment asks for
static const int32_t *any_port;  // see struct freeze_request
static uint32_t any_port_count;

// A freeze with the flags the environment asks for.
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

// Returns where the checks belong: in a copy, or in an original that goes on.
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

// Ends a case that this machine cannot show; the runner reports it as skipped, with the reason.
_Noreturn static inline void not_here(const char *why) {
    dprintf(1, "not here: %s [errno %d: %s]\n", why, errno, strerror(errno));
    _exit(77);
}

static inline double now_s(void) {
    struct timespec now;
    CHECK_EQUAL(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// A moment from now as pthread_cond_timedwait and sem_timedwait take it.
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

// Leaves the processor to others for a moment. A loop that waits, or only has to show that it goes on, calls this; only
// threads that must be stopped in the middle of computing do without.
static inline void rest(void) {
    int kept = errno;
    usleep(200);
    errno = kept;
}

// Waits until `condition` holds, by looking again and again; fails after DEADLINE_S.
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

// For a process that must outlive the one that froze: the tests kill the process whose id they find in the file
// `outlives` when the case has ended. They read the standard streams to the end before, so it keeps none of them.
static inline void outlive(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), file = open("outlives", O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(null >= 0 && file >= 0);
    CHECK(dprintf(file, "%d", getpid()) > 0);
    for (int stream = 0; stream <= 2; stream++)
        CHECK_EQUAL(dup2(null, stream), stream);
    close(null);
    close(file);
}

// The number of the system call that thread `tid` of this process is blocked in; -1: it runs.
static inline long blocked_in(int tid) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return text[0] == 'r' ? -1 : atol(text);
}

// A thread with what the cases need to know of it.
struct worker {
    pthread_t thread;
    void (*run)(struct worker *);
    _Atomic int tid;    // gettid() at its start
    _Atomic int rounds; // counts what it does, if it does something again and again
    _Atomic bool stop;
    long index;
    void *data;
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

// A worker that proves by `rounds` that it goes on; it computes for a little while and rests for a longer one.
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

// Memory filled with bytes that depend on the seed and the position, and the proof that it still is.
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

// A new file in the case's folder with `pages` of pattern `seed`.
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

// The number behind `name` in a file of /proc about this process or one of its threads; -1: there is none.
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
