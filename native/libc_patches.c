// Runs in the process that is frozen and in its thawed copies. Replaces the C library's madvise and mremap by functions
// that handle memory which a copy maps from its image (image-backed memory). The functions of clocks.c are patched in
// the same way.
//
// In a copy, former anonymous memory is a private mapping of the image, and the kernel treats it as a file mapping:
// after MADV_DONTNEED the frozen contents come back where an allocator expects zeros, MADV_FREE and MADV_WIPEONFORK are
// refused, and memory grown by mremap shows the image's next pages. So the C library's madvise and mremap are patched
// to jump to the functions here. These do to image-backed memory what the kernel would do to anonymous memory, and pass
// all other calls to the kernel. Code that makes these system calls itself is not covered; FREEZE_COPY is for such
// code.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "discard.h"
#include "freeze_parts.h"
#include "old_glibc.h"
#include "sys.h"
#include "vma.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

// mremap copies memory of up to this size, or of more than this number of mappings, instead of moving it.
#define COPIED_BYTES (256 * IMAGE_PAGE)
#define MOST_PARTS 8

static int by_text; // act as if the kernel had no PROCMAP_QUERY

// What a mapping maps: something other than an image; pages of an image that were anonymous memory; or pages of an
// image that differed from those of their file.
enum backing { BACKING_OTHER, BACKING_IMAGE_OF_ANONYMOUS, BACKING_IMAGE_OF_FILE };

static enum backing backing_of(const struct vma *vma) {
    for (uint32_t i = 0; i < thawd_landing.image_count && !vma->shared; i++) {
        const struct landed_image *image = &thawd_landing.images[i];
        if (vma->inode == image->inode && vma->device == image->device)
            return vma->offset >= image->anonymous_offset ? BACKING_IMAGE_OF_ANONYMOUS : BACKING_IMAGE_OF_FILE;
    }
    return BACKING_OTHER;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// Returns the index of the first range of the image that ends above `address`; the number of ranges if none does.
static uint64_t first_range(const struct landed_image *image, uint64_t address) {
    const uint64_t *pairs = (const uint64_t *)image->ranges;
    uint64_t low = 0, high = image->range_count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (pairs[2 * middle + 1] > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// Whether [start, end) overlaps a range that was mapped from an image at the thaw; by now other memory may be mapped
// there. Also true once mremap has moved such a range, or if the ranges are not known. This is checked first, since
// most calls concern memory that the copy has mapped itself.
static int may_be_image(uint64_t start, uint64_t end) {
    if (__atomic_load_n(&thawd_landing.moved, __ATOMIC_ACQUIRE))
        return 1;
    for (uint32_t i = 0; i < thawd_landing.image_count; i++) {
        const struct landed_image *image = &thawd_landing.images[i];
        uint64_t at = image->ranges ? first_range(image, start) : 0;
        if (!image->ranges || (at < image->range_count && ((const uint64_t *)image->ranges)[2 * at] < end))
            return 1;
    }
    return 0;
}

// Writes zeros to [start, end) by process_vm_writev, which returns an error for protected memory instead of a signal.
static void write_zeros(uint64_t start, uint64_t end) {
    static const char zeros[IMAGE_PAGE];
    for (; start < end; start += IMAGE_PAGE) {
        struct iovec from = {(void *)(uintptr_t)zeros, IMAGE_PAGE}, to = {(void *)start, IMAGE_PAGE};
        sys6(SYS_process_vm_writev, sys_getpid(), (long)&from, 1, (long)&to, 1, 0);
    }
}

// Applies the advice when the mappings cannot be read, because no descriptor is left or /proc is missing. Drops the
// pages, and then writes zeros where thaw had mapped anonymous memory from an image.
static long advise_blind(uint64_t start, uint64_t end, int advice) {
    if (advice == MADV_WIPEONFORK)
        return -ENOMEM;
    long result = sys_madvise(start, end - start, MADV_DONTNEED);
    for (uint32_t i = 0; i < thawd_landing.image_count; i++) {
        const struct landed_image *image = &thawd_landing.images[i];
        const uint64_t *pairs = (const uint64_t *)image->ranges;
        for (uint64_t at = pairs ? first_range(image, start) : 0; pairs && at < image->range_count; at++) {
            if (pairs[2 * at] >= end)
                break;
            if (!(pairs[2 * at] & RANGE_OF_FILE))
                write_zeros(pairs[2 * at] > start ? pairs[2 * at] : start, least(pairs[2 * at + 1], end));
        }
    }
    return result;
}

// Replaces [start, end) by anonymous memory with the same contents, which accepts any advice.
static long make_anonymous(const struct vma *vma, uint64_t start, uint64_t end) {
    long to = sys_mmap(0, end - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (SYS_FAILED(to))
        return to;
    copy_bytes((void *)to, (const void *)start, end - start);
    sys_mprotect((uint64_t)to, end - start, vma->protection);
    return sys_mremap((uint64_t)to, end - start, end - start, MREMAP_MAYMOVE | MREMAP_FIXED, start);
}

static long advise_part(const struct vma *vma, uint64_t start, uint64_t end, int advice) {
    enum backing backing = backing_of(vma);
    if (backing == BACKING_OTHER)
        return sys_madvise(start, end - start, advice);
    // The image has pages that differed from their file. After MADV_DONTNEED they would have to show the file, which is
    // not mapped.
    if (backing == BACKING_IMAGE_OF_FILE)
        return advice == MADV_WIPEONFORK || advice == MADV_FREE ? -EINVAL : -EACCES;
    if (advice == MADV_WIPEONFORK) {
        if (!(vma->protection & PROT_READ))
            return -EINVAL;
        long result = make_anonymous(vma, start, end);
        return SYS_FAILED(result) ? result : sys_madvise(start, end - start, advice);
    }
    return hole_make(vma, start, end, advice, by_text);
}

static int is_special(int advice) {
    return advice == MADV_DONTNEED || advice == MADV_DONTNEED_LOCKED || advice == MADV_FREE ||
           advice == MADV_WIPEONFORK;
}

static long advise(uint64_t start, uint64_t bytes, int advice) {
    uint64_t end = start + (bytes + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
    if (!thawd_landing.image_count || !is_special(advice) || start % IMAGE_PAGE || end < start ||
        !may_be_image(start, end))
        return sys_madvise(start, bytes, advice);
    if (hole_make_known(start, end, advice))
        return 0;
    // The kernel accepts MADV_FREE only for private anonymous memory. If it accepts the call, the memory is not
    // image-backed, and no lookup is needed.
    if (advice != MADV_WIPEONFORK && sys_madvise(start, bytes, MADV_FREE) == 0)
        return advice == MADV_FREE ? 0 : sys_madvise(start, bytes, advice);
    long result = 0;
    while (start < end) {
        struct vma vma;
        int failed = vma_at(start, &vma, by_text);
        if (failed && failed != -ENOENT)
            return advise_blind(start, end, advice);
        if (failed || vma.start >= end)
            return -ENOMEM; // unmapped: madvise(2) continues after such a gap and reports it at the end
        if (vma.start > start) {
            result = -ENOMEM;
            start = vma.start;
        }
        uint64_t part_end = least(vma.end, end);
        long part = advise_part(&vma, start, part_end, advice);
        if (part < 0)
            result = part;
        start = part_end;
    }
    return result;
}

// The mappings of a range: the last of them, their number, and whether they differ in protection.
struct found {
    struct vma last;
    uint32_t parts;
    int mixed;
};

// Whether any part of [start, end) is image-backed. Returns -EFAULT if the range has an unmapped part, or contains both
// image-backed memory and pages of a file; the kernel also returns -EFAULT if a range spans several mappings.
static long looks_frozen(uint64_t start, uint64_t end, struct found *in) {
    long found = 0;
    int of_file = 0, protection = 0;
    for (*in = (struct found){0}; start < end; start = in->last.end) {
        if (vma_at(start, &in->last, by_text) || in->last.start > start)
            return -EFAULT;
        enum backing backing = backing_of(&in->last);
        found |= backing != BACKING_OTHER;
        of_file |= backing == BACKING_IMAGE_OF_FILE || (backing == BACKING_OTHER && in->last.inode);
        in->mixed |= in->parts++ && protection != in->last.protection;
        protection = in->last.protection;
    }
    return found && of_file ? -EFAULT : found;
}

// Moves [from, from + bytes), which may be many mappings, to the reserved memory at `to`.
static long move_mappings(uint64_t from, uint64_t bytes, uint64_t to) {
    for (uint64_t done = 0; done < bytes;) {
        struct vma vma;
        if (vma_at(from + done, &vma, by_text) || vma.start > from + done)
            return -EFAULT;
        uint64_t part = least(vma.end - (from + done), bytes - done);
        long result = sys_mremap(from + done, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, to + done);
        if (SYS_FAILED(result))
            return result;
        done += part;
    }
    return 0;
}

// Copies the pages that are not zeros to new memory; the old memory is unmapped afterwards.
static void copy_pages(uint64_t from, uint64_t bytes, uint64_t to) {
    for (uint64_t at = 0; at < bytes; at += IMAGE_PAGE)
        if (!is_zero(from + at))
            __builtin_memcpy((void *)(to + at), (const void *)(from + at), IMAGE_PAGE);
}

// Grows memory in place, by mapping anonymous memory after it. Returns 0 if those addresses are in use.
static int grow_in_place(uint64_t end, uint64_t bytes, int protection) {
    long tail = sys_mmap(end, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (tail == (long)end)
        return 1;
    if (!SYS_FAILED(tail))
        sys_munmap((uint64_t)tail, bytes); // a kernel without MAP_FIXED_NOREPLACE mapped it elsewhere
    return 0;
}

static long grow(uint64_t from, uint64_t bytes, uint64_t new_bytes, int flags, uint64_t to, const struct found *in) {
    int protection = in->last.protection;
    if (!(flags & MREMAP_FIXED)) {
        if (grow_in_place(from + bytes, new_bytes - bytes, protection))
            return (long)from;
        if (!(flags & MREMAP_MAYMOVE))
            return -ENOMEM;
    }
    // If a block that grows repeatedly were moved each time, each move would add a mapping, because the kernel does not
    // merge these mappings. So small blocks are copied.
    int copied = (bytes <= COPIED_BYTES || in->parts > MOST_PARTS) && protection & PROT_READ && !in->mixed;
    uint64_t kept = least(bytes, new_bytes);
    long target = sys_mmap(flags & MREMAP_FIXED ? to : 0, new_bytes, protection | (copied ? PROT_WRITE : 0),
                           MAP_PRIVATE | MAP_ANONYMOUS | (flags & MREMAP_FIXED ? MAP_FIXED : 0), -1, 0);
    if (SYS_FAILED(target))
        return target;
    if (copied) {
        copy_pages(from, kept, (uint64_t)target);
        if (!(protection & PROT_WRITE))
            sys_mprotect((uint64_t)target, new_bytes, protection);
        sys_munmap(from, bytes);
        return target;
    }
    __atomic_store_n(&thawd_landing.moved, 1, __ATOMIC_RELEASE);
    long result = move_mappings(from, kept, (uint64_t)target);
    if (SYS_FAILED(result))
        return result;
    if (kept < bytes)
        sys_munmap(from + kept, bytes - kept);
    return target;
}

static long remap(uint64_t from, uint64_t bytes, uint64_t new_bytes, int flags, uint64_t to) {
    uint64_t old = (bytes + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
    uint64_t new = (new_bytes + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
    int moves = flags & (MREMAP_FIXED | MREMAP_DONTUNMAP);
    if (!thawd_landing.image_count || !old || !new || from % IMAGE_PAGE || (new <= old && !moves) ||
        !may_be_image(from, from + old))
        return sys_mremap(from, bytes, new_bytes, flags, to);
    struct found in;
    long frozen = looks_frozen(from, from + old, &in);
    if (frozen < 0)
        return frozen;
    if (!frozen)
        return sys_mremap(from, bytes, new_bytes, flags, to);
    if (flags & MREMAP_DONTUNMAP)
        return -EINVAL; // the kernel returns the same for file mappings
    if (flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED) ||
        (moves && (to % IMAGE_PAGE || !(flags & MREMAP_MAYMOVE) || (to < from + old && from < to + new))))
        return -EINVAL;
    return grow(from, old, new, flags, to, &in);
}

static int patched_madvise(void *address, size_t bytes, int advice) {
    long result = advise((uint64_t)address, bytes, advice);
    if (!SYS_FAILED(result))
        return 0;
    errno = (int)-result;
    return -1;
}

static void *patched_mremap(void *address, size_t bytes, size_t new_bytes, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(arguments, void *) : 0;
    va_end(arguments);
    long result = remap((uint64_t)address, bytes, new_bytes, flags, (uint64_t)to);
    if (!SYS_FAILED(result))
        return (void *)result;
    errno = (int)-result;
    return MAP_FAILED;
}

static struct patch {
    const char *name;
    void *replacement;
    unsigned char *at;
    unsigned char saved[JUMP_BYTES];
} patches[] = {
    {.name = "madvise", .replacement = (void *)patched_madvise},
    {.name = "mremap", .replacement = (void *)patched_mremap},
    {.name = "clock_gettime", .replacement = (void *)patched_clock_gettime},
    {.name = "getrusage", .replacement = (void *)patched_getrusage},
    {.name = "times", .replacement = (void *)patched_times},
};
#define PATCHES (sizeof patches / sizeof *patches)

// Finds a function in the C library. It must be long enough for a jump. Call this before the threads are stopped.
static int find(struct freezing *f, struct patch *patch) {
    Dl_info info;
    const ElfW(Sym) *symbol = 0;
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    patch->at = library ? dlsym(library, patch->name) : 0;
    if (library)
        dlclose(library);
    if (!patch->at || !dladdr1(patch->at, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
        symbol->st_size < JUMP_BYTES)
        return refuse(f, "hooks", "a function of this C library cannot be replaced; use glibc: ", patch->name);
    return 0;
}

int patches_find(struct freezing *f) {
    int result = 0;
    clocks_find();
    for (unsigned i = 0; !result && i < PATCHES; i++)
        result = find(f, &patches[i]);
    return result;
}

int patches_install(struct freezing *f) {
    by_text = (f->request->flags & FREEZE_NO_PROCMAP_QUERY) != 0;
    for (unsigned i = 0; i < PATCHES; i++) {
        struct patch *patch = &patches[i];
        unsigned char jump[JUMP_BYTES];
        write_jump(jump, (uint64_t)patch->replacement);
        if (!__builtin_memcmp(patch->at, jump, JUMP_BYTES))
            return 0; // a copy that is frozen again already has the patches
        // SAFETY: no thread may be stopped inside the bytes that change. On -EAGAIN the caller tries again.
        if (park_is_inside((uint64_t)patch->at, (uint64_t)patch->at + JUMP_BYTES))
            return fail(f, "hooks", -EAGAIN, "a thread is stopped at the beginning of a function that must be patched");
    }
    f->is_patched = 1;
    for (unsigned i = 0; i < PATCHES; i++) {
        struct patch *patch = &patches[i];
        unsigned char jump[JUMP_BYTES];
        write_jump(jump, (uint64_t)patch->replacement);
        copy_bytes(patch->saved, patch->at, JUMP_BYTES);
        // Writing through /proc/self/mem changes a private copy of the read-only code, and needs no mprotect.
        long result = sys_pwrite(f->memory_fd, jump, JUMP_BYTES, (uint64_t)patch->at);
        if (result != JUMP_BYTES)
            return fail(f, "hooks", result < 0 ? result : -EIO,
                        "the C library cannot be patched through /proc/self/mem");
    }
    return fault_point(f, "hooks");
}

void patches_remove(struct freezing *f) {
    if (!f->is_patched)
        return;
    for (unsigned i = 0; i < PATCHES; i++)
        if (patches[i].saved[0])
            sys_pwrite(f->memory_fd, patches[i].saved, JUMP_BYTES, (uint64_t)patches[i].at);
    f->is_patched = 0;
}
