// Runs in the process that is frozen, before the freeze. Waits until the other threads sleep.
//
// A thread that has just been woken holds a lock for some microseconds: the lock of a condition variable for example.
// On a busy machine the kernel can let it wait for a processor meanwhile, for as long as it likes. A thread that
// computes never sleeps; it is recognised by the processor time that it uses.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>

#include "freeze.h"
#include "sys.h"
#include "text.h"

#define MOST_THREADS 1024
#define COMPUTES_NS 2000000 // a thread that has used this much without sleeping computes
#define PAUSE_NS 200000

struct seen {
    int tid;
    uint64_t began_ns; // its processor time when it was first seen awake
};

// Reads a file of the thread `tid`. Returns the number of bytes, or -errno.
static long read_of(int tid, const char *file, char *to, uint64_t bytes) {
    char path[64];
    struct writer out = text_writer(path, sizeof path);
    put_text(&out, "/proc/self/task/");
    put_number(&out, (unsigned)tid, 10);
    put_text(&out, file);
    return read_text_file(path, to, bytes);
}

// Returns whether the thread is about to run, runs, or waits for the disk. A thread that has ended does not.
static int is_awake(int tid) {
    char stat[512];
    if (read_of(tid, "/stat", stat, sizeof stat) <= 0)
        return 0;
    const char *at = stat + text_bytes(stat);
    while (at > stat && *at != ')')
        at--;
    return at[0] == ')' && (at[2] == 'R' || at[2] == 'D');
}

// Returns the processor time of the thread, or 0 if the kernel does not tell it.
static uint64_t processor_ns(int tid) {
    char text[96];
    const char *at = text;
    return read_of(tid, "/schedstat", text, sizeof text) > 0 ? take_number(&at, 10) : 0;
}

// Returns whether the thread is awake and does not compute.
static int is_restless(int tid, struct seen *seen, int *count) {
    if (!is_awake(tid))
        return 0;
    uint64_t now_ns = processor_ns(tid);
    for (int i = 0; i < *count; i++)
        if (seen[i].tid == tid)
            return now_ns - seen[i].began_ns < COMPUTES_NS;
    if (*count == MOST_THREADS)
        return 0;
    seen[(*count)++] = (struct seen){tid, now_ns};
    return 1;
}

// Returns the number of other threads that are awake and do not compute, or -errno.
static long restless(int own, struct seen *seen, int *count) {
    int fd = sys_open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    char buffer[4096];
    long bytes, found = 0;
    while ((bytes = sys3(SYS_getdents64, fd, (long)buffer, sizeof buffer)) > 0)
        for (long at = 0; at < bytes;) {
            const char *name = buffer + at + 19; // see signal_others in park_threads.c
            at += *(uint16_t *)(buffer + at + 16);
            int tid = (int)take_number(&name, 10);
            if (tid && tid != own)
                found += is_restless(tid, seen, count);
        }
    sys_close(fd);
    return bytes < 0 ? bytes : found;
}

int thawd_others_sleep(int64_t limit_ns) {
    struct seen seen[MOST_THREADS];
    int count = 0, own = sys_gettid();
    const struct timespec pause = {0, PAUSE_NS};
    uint32_t nobody = 0;
    for (uint64_t until_ns = monotonic_ns() + (uint64_t)limit_ns;;) {
        long found = restless(own, seen, &count);
        if (found <= 0)
            return found == 0;
        if (monotonic_ns() >= until_ns)
            return 0;
        sys_futex(&nobody, FUTEX_WAIT, 0, &pause);
    }
}
