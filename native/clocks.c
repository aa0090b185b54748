// Runs in the process that is frozen and in its thawed copies. Keeps processor time from running backwards.
//
// The kernel counts a copy's processor time from 0. But the program may remember readings from before the freeze, and
// the difference from a new reading would be negative. Therefore libc_patches.c patches clock_gettime, getrusage and
// times of the C library: in a copy they jump to the functions here, which add the processor time of the frozen
// process. The time that times returns counts from the machine's start, and no time namespace changes it; it goes on
// from the freeze, too. Other clocks are still read from the vDSO. Code that makes the system calls itself, or reads
// /proc, sees the kernel's own count.
//
// Source: clock_gettime(2), getrusage(2), times(2). Source for clock ids below 0: the kernel's
// include/linux/posix-timers_types.h.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/times.h>
#include <time.h>

#include "freeze_parts.h"
#include "old_glibc.h"
#include "sys.h"

#define SECOND_NS UINT64_C(1000000000)
#define SECOND_US UINT64_C(1000000)
#define TICKS 100 // USER_HZ: ticks per second of times(2), on every architecture that this code supports

typedef int (*clock_function)(clockid_t, struct timespec *);
static clock_function vdso_clock; // the vDSO's clock_gettime; NULL: the vDSO has none

// Processor time of the thread `tid` when it was frozen, nanoseconds; 0 for a new thread.
static uint64_t used_by_thread(int32_t tid) {
    const int32_t *pairs = (const int32_t *)thawd_landing.tids;
    const uint64_t *used = (const uint64_t *)thawd_landing.thread_cpu;
    uint64_t most = 0;
    for (uint64_t i = 0; i < thawd_landing.tid_count; i++) {
        if (pairs[2 * i + 1] == tid)
            return used[i];
        most = used[i] > most ? used[i] : most;
    }
    // After a fork of a copy, the only thread is a copy of one of the frozen threads and has the new process's id.
    // Which one is not known, so the longest time is taken.
    return most && tid == sys_getpid() ? most : 0;
}

// The time to add to a reading of `clock`, a clock of processor time; 0 for another process's clock.
static uint64_t missing_from(clockid_t clock) {
    if (clock == CLOCK_PROCESS_CPUTIME_ID)
        return thawd_landing.cpu_ns;
    if (clock == CLOCK_THREAD_CPUTIME_ID)
        return used_by_thread(sys_gettid());
    int32_t id = ~(clock >> 3);
    if (clock & 4) // the clock of a thread
        return used_by_thread(id ? id : sys_gettid());
    return !id || id == sys_getpid() ? thawd_landing.cpu_ns : 0;
}

int patched_clock_gettime(clockid_t clock, struct timespec *time) {
    int of_processor =
        clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID || (clock < 0 && (clock & 3) != 3);
    long result = vdso_clock && !of_processor ? vdso_clock(clock, time) : sys3(SYS_clock_gettime, clock, (long)time, 0);
    if (result) {
        errno = (int)-result;
        return -1;
    }
    if (of_processor) {
        uint64_t ns = (uint64_t)time->tv_nsec + missing_from(clock);
        time->tv_sec += (time_t)(ns / SECOND_NS);
        time->tv_nsec = (long)(ns % SECOND_NS);
    }
    return 0;
}

static void add_us(struct timeval *time, uint64_t us) {
    us += (uint64_t)time->tv_usec;
    time->tv_sec += (time_t)(us / SECOND_US);
    time->tv_usec = (suseconds_t)(us % SECOND_US);
}

int patched_getrusage(int who, struct rusage *usage) {
    long result = sys3(SYS_getrusage, who, (long)usage, 0);
    if (result) {
        errno = (int)-result;
        return -1;
    }
    if (who == RUSAGE_SELF) {
        add_us(&usage->ru_utime, thawd_landing.user_us);
        add_us(&usage->ru_stime, thawd_landing.system_us);
    } else if (who == RUSAGE_CHILDREN) {
        add_us(&usage->ru_utime, thawd_landing.children_user_us);
        add_us(&usage->ru_stime, thawd_landing.children_system_us);
    } else if (who == RUSAGE_THREAD) {
        add_us(&usage->ru_utime, used_by_thread(sys_gettid()) / 1000);
    }
    return 0;
}

clock_t patched_times(struct tms *used) {
    long result = sys3(SYS_times, (long)used, 0, 0);
    if (result == -EFAULT) {
        errno = EFAULT;
        return -1;
    }
    if (used) {
        used->tms_utime += (clock_t)(thawd_landing.user_us * TICKS / SECOND_US);
        used->tms_stime += (clock_t)(thawd_landing.system_us * TICKS / SECOND_US);
        used->tms_cutime += (clock_t)(thawd_landing.children_user_us * TICKS / SECOND_US);
        used->tms_cstime += (clock_t)(thawd_landing.children_system_us * TICKS / SECOND_US);
    }
    return result + thawd_landing.ticks_ahead;
}

void clocks_find(void) {
    void *vdso = dlopen("linux-vdso.so.1", RTLD_NOW | RTLD_NOLOAD);
    vdso_clock = vdso ? (clock_function)(uintptr_t)dlsym(vdso, "__vdso_clock_gettime") : 0;
    if (vdso)
        dlclose(vdso);
}

uint64_t clocks_of_this_thread(void) {
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) + used_by_thread(sys_gettid());
}

static uint64_t in_us(const struct timeval *time) {
    return (uint64_t)time->tv_sec * SECOND_US + (uint64_t)time->tv_usec;
}

void clocks_note(struct freezing *f) {
    struct rusage own = {0}, children = {0};
    f->landing_before = thawd_landing;
    f->noted = 1;
    sys3(SYS_getrusage, RUSAGE_SELF, (long)&own, 0);
    sys3(SYS_getrusage, RUSAGE_CHILDREN, (long)&children, 0);
    thawd_landing.ticks = sys3(SYS_times, 0, 0, 0) + thawd_landing.ticks_ahead;
    thawd_landing.cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    thawd_landing.user_us += in_us(&own.ru_utime);
    thawd_landing.system_us += in_us(&own.ru_stime);
    thawd_landing.children_user_us += in_us(&children.ru_utime);
    thawd_landing.children_system_us += in_us(&children.ru_stime);
}

void clocks_forget(struct freezing *f) {
    if (!f->noted)
        return;
    thawd_landing.cpu_ns = f->landing_before.cpu_ns;
    thawd_landing.user_us = f->landing_before.user_us;
    thawd_landing.system_us = f->landing_before.system_us;
    thawd_landing.children_user_us = f->landing_before.children_user_us;
    thawd_landing.children_system_us = f->landing_before.children_system_us;
    f->noted = 0;
}
