// Runs in freeze and in thaw. System calls without a C library: they return -errno, take no lock and do not set errno.

#ifndef THAWD_SYS_H
#define THAWD_SYS_H

#include <stdint.h>

#include "arch_x86_64.h"

#include <sys/syscall.h>

#define SYS_FAILED(result) ((unsigned long)(result) > -4096UL)

static inline long sys6(long n, long a, long b, long c, long d, long e, long f) {
    return system_call(n, a, b, c, d, e, f);
}
static inline long sys3(long n, long a, long b, long c) {
    return system_call(n, a, b, c, 0, 0, 0);
}
static inline int sys_open(const char *path, int flags, int mode) {
    return (int)sys6(SYS_openat, -100 /* AT_FDCWD */, (long)path, flags, mode, 0, 0);
}
// `to`: struct stat; glibc's has the kernel's layout.
static inline int sys_stat(const char *path, void *to) {
    return (int)sys6(SYS_newfstatat, -100 /* AT_FDCWD */, (long)path, (long)to, 0, 0, 0);
}
static inline int sys_close(int fd) {
    return (int)sys3(SYS_close, fd, 0, 0);
}
static inline long sys_read(int fd, void *to, uint64_t bytes) {
    return sys3(SYS_read, fd, (long)to, (long)bytes);
}
static inline long sys_write(int fd, const void *from, uint64_t bytes) {
    return sys3(SYS_write, fd, (long)from, (long)bytes);
}
static inline long sys_pread(int fd, void *to, uint64_t bytes, uint64_t offset) {
    return sys6(SYS_pread64, fd, (long)to, (long)bytes, (long)offset, 0, 0);
}
static inline long sys_pwrite(int fd, const void *from, uint64_t bytes, uint64_t offset) {
    return sys6(SYS_pwrite64, fd, (long)from, (long)bytes, (long)offset, 0, 0);
}
static inline long sys_mmap(uint64_t address, uint64_t bytes, int protection, int flags, int fd, uint64_t offset) {
    return sys6(SYS_mmap, (long)address, (long)bytes, protection, flags, fd, (long)offset);
}
static inline int sys_munmap(uint64_t address, uint64_t bytes) {
    return (int)sys3(SYS_munmap, (long)address, (long)bytes, 0);
}
static inline int sys_mprotect(uint64_t address, uint64_t bytes, int protection) {
    return (int)sys3(SYS_mprotect, (long)address, (long)bytes, protection);
}
static inline int sys_madvise(uint64_t address, uint64_t bytes, int advice) {
    return (int)sys3(SYS_madvise, (long)address, (long)bytes, advice);
}
static inline long sys_mremap(uint64_t from, uint64_t bytes, uint64_t new_bytes, int flags, uint64_t to) {
    return sys6(SYS_mremap, (long)from, (long)bytes, (long)new_bytes, flags, (long)to, 0);
}
static inline long sys_ioctl(int fd, uint64_t request, void *argument) {
    return sys3(SYS_ioctl, fd, (long)request, (long)argument);
}
static inline long sys_fcntl(int fd, int command, long argument) {
    return sys3(SYS_fcntl, fd, command, argument);
}
static inline long sys_prctl(int option, long a, long b, long c, long d) {
    return sys6(SYS_prctl, option, a, b, c, d, 0);
}
static inline long sys_futex(uint32_t *word, int operation, uint32_t value, const void *timeout) {
    return sys6(SYS_futex, (long)word, operation, value, (long)timeout, 0, 0);
}
static inline int sys_gettid(void) {
    return (int)sys3(SYS_gettid, 0, 0, 0);
}
static inline int sys_getpid(void) {
    return (int)sys3(SYS_getpid, 0, 0, 0);
}
// Reads a clock, nanoseconds. Uses the system call, because the vDSO may be unmapped.
static inline uint64_t clock_ns(int clock) {
    struct {
        int64_t seconds, nanoseconds;
    } now = {0, 0};
    sys3(SYS_clock_gettime, clock, (long)&now, 0);
    return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.nanoseconds;
}
static inline uint64_t monotonic_ns(void) {
    return clock_ns(1 /* CLOCK_MONOTONIC */);
}

#endif
