// Linked into a library that stands for the vDSO of another kernel (thawd-thaw --vdso): its functions
// are at other addresses, and some are missing.

#include <sys/syscall.h>

struct timespec;
struct timeval;

static long call(long number, long a, long b) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
    return result;
}

int __vdso_gettimeofday(struct timeval *time, void *zone);
int __vdso_clock_gettime(int clock, struct timespec *time);

int __vdso_gettimeofday(struct timeval *time, void *zone) {
    return (int)call(SYS_gettimeofday, (long)time, (long)zone);
}

int __vdso_clock_gettime(int clock, struct timespec *time) {
    return (int)call(SYS_clock_gettime, clock, (long)time);
}
