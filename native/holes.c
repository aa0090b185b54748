// Runs in thawed copies, for hooks.c. Forgets image-backed memory: what the program gives back reads as zeros.
//
// Two ways lead there. New anonymous memory over the image gives the pages back, and costs up to two mappings, of which
// a process may have 65,530 (vm.max_map_count); an allocator that returns two of three blocks of a fragmented heap
// would use them up. Zeros written into the mapping cost none, but keep as much memory as is forgotten. So a hole is
// mapped while those before it have added few mappings, and a larger one for longer: up to MAPPINGS, and MAPPINGS more
// each time that its size doubles. All other holes are written.
//
// Guarantees: pages given back read as zeros (MADV_DONTNEED), or as before or zeros (MADV_FREE), until they are
// written. No other page is touched, so threads that use the neighbours notice nothing. Holes of up to 1 GiB add fewer
// than 9,728 mappings. Zeros take at most as much memory as the frozen process had in these pages, and giving the same
// pages back again takes neither memory nor mappings.
//
// Which mapping a hole lies in has to be asked each time, since the program may have put another one there; and opening
// /proc/self/maps takes longer than all the rest, before Linux 6.11 as long as the process has mappings. So mappings
// that holes are written into get a mark that the kernel keeps with them and forgets with them: a memory policy that
// means what the default means, and that nobody else sets. get_mempolicy(2) finds it ten times as fast.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "holes.h"
#include "image.h"
#include "sys.h"

#ifndef MADV_COLD
#define MADV_COLD 20
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

#define MAPPINGS 512
#define LOOKED_AT (16 * IMAGE_PAGE) // a hole of this size may well be zeros: freeze stores gaps that are not larger
#define KNOWN (4 * IMAGE_PAGE)

// Source: include/uapi/linux/mempolicy.h. Any of all nodes that the process may use is preferred: Linux 5.15.
#define POLICY_MARK (5 /* MPOL_PREFERRED_MANY */ | 1 << 15 /* MPOL_F_STATIC_NODES */)
#define POLICY_OF_ADDRESS 2
#define POLICY_NODES_ALLOWED 4
#define MOST_NODES 1024

// By how many mappings the process has more for its holes. Those that went with their memory are counted still.
static int64_t added;
static uint32_t marked; // whether any mapping has the mark

static const char zeros[IMAGE_PAGE];

static int may_be_mapped(uint64_t bytes) {
    int64_t most = MAPPINGS;
    for (uint64_t pages = bytes / IMAGE_PAGE; pages > 1; pages /= 2)
        most += MAPPINGS;
    return __atomic_load_n(&added, __ATOMIC_RELAXED) < most;
}

// Notes what a hole in `vma` has cost: nothing where it was all of it, or where the kernel joined it with neighbours.
static void count(const struct vma *vma, uint64_t start, uint64_t end, int by_text) {
    struct vma hole;
    int64_t more = 1 + (start > vma->start && end < vma->end) - (start == vma->start && end == vma->end);
    if (!by_text && !vma_at(start, &hole, 0)) // by the text it would take longer than the hole
        more -= (hole.start < start) + (hole.end > end);
    __atomic_add_fetch(&added, more, __ATOMIC_RELAXED);
}

static long map_hole(const struct vma *vma, uint64_t start, uint64_t end, int by_text) {
    long result =
        sys_mmap(start, end - start, vma->protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (SYS_FAILED(result))
        return result;
    count(vma, start, end, by_text);
    return 0;
}

int is_zero(uint64_t page) {
    return !__builtin_memcmp((const void *)page, zeros, IMAGE_PAGE);
}

static int are_zeros(uint64_t start, uint64_t end) {
    while (start < end && is_zero(start))
        start += IMAGE_PAGE;
    return start == end;
}

// Into memory that the program may not write: the kernel does that for /proc/self/mem, as for a debugger.
static long write_forbidden(const struct vma *vma, uint64_t start, uint64_t end, int by_text) {
    int fd = sys_open("/proc/self/mem", O_RDWR | O_CLOEXEC, 0);
    long written = fd < 0 ? fd : IMAGE_PAGE;
    for (uint64_t page = start; written == IMAGE_PAGE && page < end; page += IMAGE_PAGE)
        written = sys_pwrite(fd, zeros, IMAGE_PAGE, page);
    if (fd >= 0)
        sys_close(fd);
    return written == IMAGE_PAGE ? 0 : map_hole(vma, start, end, by_text);
}

// A filter of system calls may end the process for one that it does not know.
static int is_filtered(void) {
    return sys_prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 0;
}

static void mark(const struct vma *vma) {
    uint64_t nodes[MOST_NODES / 64] = {0};
    if (is_filtered() || sys6(SYS_get_mempolicy, 0, (long)nodes, MOST_NODES, 0, POLICY_NODES_ALLOWED, 0) < 0)
        return;
    long result =
        sys6(SYS_mbind, (long)vma->start, (long)(vma->end - vma->start), POLICY_MARK, (long)nodes, MOST_NODES, 0);
    if (result == 0)
        __atomic_store_n(&marked, 1, __ATOMIC_RELEASE);
}

static long write_hole(const struct vma *vma, uint64_t start, uint64_t end, int by_text) {
    if (!(vma->protection & PROT_WRITE))
        return write_forbidden(vma, start, end, by_text);
    for (uint64_t page = start; page < end; page += IMAGE_PAGE)
        if (!(vma->protection & PROT_READ) || !is_zero(page))
            __builtin_memset((void *)page, 0, IMAGE_PAGE);
    if (end - start <= KNOWN)
        mark(vma);
    return 0;
}

long hole_make(const struct vma *vma, uint64_t start, uint64_t end, int advice, int by_text) {
    // Asked for its errors alone: it refuses what MADV_DONTNEED refuses, locked memory, and forgets nothing.
    long result = sys_madvise(start, end - start, MADV_COLD);
    int locked = result == -EINVAL;
    if (result < 0 && !(locked && advice == MADV_DONTNEED_LOCKED))
        return result;
    if (vma->protection & PROT_READ && end - start <= LOOKED_AT && are_zeros(start, end))
        return 0;
    result = may_be_mapped(end - start) ? map_hole(vma, start, end, by_text) : -ENOMEM;
    if (!result && locked)
        sys3(SYS_mlock2, (long)start, (long)(end - start), 1 /* MLOCK_ONFAULT */);
    if (!result || advice == MADV_FREE) // which leaves the contents until the kernel needs the memory: it never does
        return 0;
    return write_hole(vma, start, end, by_text);
}

// Whether the page is in a mapping with the mark.
static int is_marked(uint64_t page) {
    int policy = 0;
    return sys6(SYS_get_mempolicy, (long)&policy, 0, 0, (long)page, POLICY_OF_ADDRESS, 0) == 0 && policy == POLICY_MARK;
}

// Protection may have changed since the mark was set. Both are calls that copy a few bytes from or to the page and tell
// where they may not: times for a file that there is not, and the set of blocked signals, where only zeros will stay.
static int may_be_read(uint64_t page) {
    return sys6(SYS_utimensat, -1, 0, (long)page, 0, 0, 0) != -EFAULT;
}

static int may_be_written(uint64_t page) {
    return sys6(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, 0, (long)page, 8, 0, 0) == 0;
}

int hole_make_known(uint64_t start, uint64_t end, int advice) {
    if (!__atomic_load_n(&marked, __ATOMIC_ACQUIRE) || end - start > KNOWN || may_be_mapped(end - start) ||
        (advice != MADV_DONTNEED && advice != MADV_FREE) || is_filtered())
        return 0;
    for (uint64_t page = start; page < end; page += IMAGE_PAGE)
        if (!is_marked(page))
            return 0;
    for (uint64_t page = start; advice == MADV_DONTNEED && page < end; page += IMAGE_PAGE) {
        if (!may_be_read(page))
            return 0;
        if (is_zero(page))
            continue;
        if (!may_be_written(page))
            return 0;
        __builtin_memset((void *)page, 0, IMAGE_PAGE);
    }
    return 1;
}
