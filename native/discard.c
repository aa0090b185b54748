// Runs in thawed copies, for libc_patches.c. Discards memory that is mapped from an image (image-backed memory): when
// the program releases such memory with madvise, it must read as zeros, and not as in the image.
//
// A released range of pages is called a hole. There are two ways to make one. Mapping new anonymous memory over the
// image frees the pages, but adds up to two mappings, and a process may have only 65,530 (vm.max_map_count): an
// allocator that releases two of three blocks of a fragmented heap would use them up. Writing zeros into the existing
// mapping adds no mapping, but keeps the memory in use. So a hole is mapped as long as earlier holes have added few
// mappings: up to MAPPINGS, and MAPPINGS more for each doubling of the hole's size. All other holes are written.
//
// Guarantees: released pages read as zeros (MADV_DONTNEED), or as before or zeros (MADV_FREE), until they are written.
// No other page is touched, so threads that use neighbouring pages notice nothing. Holes of up to 1 GiB add fewer than
// 9,728 mappings. Written zeros take at most as much memory as the frozen process had in these pages. Releasing the
// same pages again takes neither memory nor mappings.
//
// The mapping at a hole must be looked up each time, since the program may have mapped something else there. Opening
// /proc/self/maps takes longer than everything else, and before Linux 6.11 the lookup takes longer the more mappings
// there are. So mappings into which zeros were written for a small hole get a mark: a memory policy that is equivalent
// to the default and that no other code sets. The kernel keeps the mark with the mapping, and get_mempolicy(2) finds it
// ten times as fast as a lookup.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "discard.h"
#include "image.h"
#include "sys.h"

#ifndef MADV_COLD
#define MADV_COLD 20
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

#define MAPPINGS 512
// A hole of up to this size is checked for zeros first: freeze stores unused gaps of this size as zeros.
#define LOOKED_AT (16 * IMAGE_PAGE)
// Holes of up to this size get the mark, and hole_make_known can make them again.
#define KNOWN (4 * IMAGE_PAGE)

// "Prefer any of all nodes that the process may use" (Linux 5.15). Source: include/uapi/linux/mempolicy.h.
#define POLICY_MARK (5 /* MPOL_PREFERRED_MANY */ | 1 << 15 /* MPOL_F_STATIC_NODES */)
#define POLICY_OF_ADDRESS 2
#define POLICY_NODES_ALLOWED 4
#define MOST_NODES 1024

// Number of mappings that holes have added, including those that the program has unmapped since.
static int64_t added;
static uint32_t marked; // whether any mapping has the mark

static const char zeros[IMAGE_PAGE];

static int may_be_mapped(uint64_t bytes) {
    int64_t most = MAPPINGS;
    for (uint64_t pages = bytes / IMAGE_PAGE; pages > 1; pages /= 2)
        most += MAPPINGS;
    return __atomic_load_n(&added, __ATOMIC_RELAXED) < most;
}

// Counts the mappings that a hole in `vma` has added: none if the hole covers all of `vma`, or if the kernel merged it
// with its neighbours.
static void count(const struct vma *vma, uint64_t start, uint64_t end, int by_text) {
    struct vma hole;
    int64_t more = 1 + (start > vma->start && end < vma->end) - (start == vma->start && end == vma->end);
    if (!by_text && !vma_at(start, &hole, 0)) // reading /proc/self/maps would take longer than making the hole
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

// Writes zeros into memory that the program may not write. The kernel permits that through /proc/self/mem, which
// debuggers use.
static long write_forbidden(const struct vma *vma, uint64_t start, uint64_t end, int by_text) {
    int fd = sys_open("/proc/self/mem", O_RDWR | O_CLOEXEC, 0);
    long written = fd < 0 ? fd : IMAGE_PAGE;
    for (uint64_t page = start; written == IMAGE_PAGE && page < end; page += IMAGE_PAGE)
        written = sys_pwrite(fd, zeros, IMAGE_PAGE, page);
    if (fd >= 0)
        sys_close(fd);
    return written == IMAGE_PAGE ? 0 : map_hole(vma, start, end, by_text);
}

// Whether the process is under a seccomp filter. A filter may kill the process for a system call that it does not list.
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
    // Called only for its errors: MADV_COLD refuses locked memory as MADV_DONTNEED does, but frees nothing.
    long result = sys_madvise(start, end - start, MADV_COLD);
    int locked = result == -EINVAL;
    if (result < 0 && !(locked && advice == MADV_DONTNEED_LOCKED))
        return result;
    if (vma->protection & PROT_READ && end - start <= LOOKED_AT && are_zeros(start, end))
        return 0;
    result = may_be_mapped(end - start) ? map_hole(vma, start, end, by_text) : -ENOMEM;
    if (!result && locked)
        sys3(SYS_mlock2, (long)start, (long)(end - start), 1 /* MLOCK_ONFAULT */);
    // MADV_FREE may keep the contents until the kernel needs the memory, so nothing needs to be written for it.
    if (!result || advice == MADV_FREE)
        return 0;
    return write_hole(vma, start, end, by_text);
}

// Whether the page is in a mapping with the mark.
static int is_marked(uint64_t page) {
    int policy = 0;
    return sys6(SYS_get_mempolicy, (long)&policy, 0, 0, (long)page, POLICY_OF_ADDRESS, 0) == 0 && policy == POLICY_MARK;
}

// The protection may have changed since the mark was set. Each of these functions makes a system call that copies a few
// bytes from or to the page, and that fails if this is not permitted. The first passes the page as the times to set on
// a file that does not exist. The second has the set of blocked signals written into the page, which is zeroed later.
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
