// Runs in thaw's address space. Unmaps this program's own address space and maps the frozen process's in its place.

#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <sys/statfs.h>

#include "thaw.h"
#include "vma.h"

#define FUSE_MAGIC 0x65735546

static void unmap(uint64_t start, uint64_t end) {
    long result = start < end ? sys_munmap(start, end - start) : 0;
    if (result < 0)
        thaw_fail("the address space cannot be cleared", "", result);
}

void stage_clear(struct thaw *t) {
    uint64_t zone_end = ZONE_START + ZONE_BYTES;
    unmap(0, ZONE_START);
    if (!t->vdso_jump || !t->vdso.code_bytes) {
        unmap(zone_end, USER_SPACE_END);
        return;
    }
    unmap(zone_end, vdso_start(&t->vdso));
    unmap(t->vdso.code_start + t->vdso.code_bytes, USER_SPACE_END);
}

static void read_into(struct thaw *t, const struct operation *operation) {
    uint64_t done = 0;
    while (done < operation->length) {
        long got = sys_pread(t->image_fd, (void *)(operation->address + done), operation->length - done,
                             operation->offset + done);
        if (got <= 0)
            thaw_fail("page data cannot be read", "", got ? got : -EIO);
        done += (uint64_t)got;
    }
}

static void protect(const struct operation *operation, int protection) {
    long result = sys_mprotect(operation->address, operation->length, protection);
    if (result < 0)
        thaw_fail("memory cannot be protected", "", result);
}

static void copy_in(struct thaw *t, const struct operation *operation) {
    int writable = (operation->protection & PROT_WRITE) != 0;
    if (!writable)
        protect(operation, PROT_READ | PROT_WRITE);
    read_into(t, operation);
    if (!writable)
        protect(operation, (int)operation->protection);
}

static long map(const struct operation *operation, int flags, int fd) {
    if (operation->flags & OPERATION_NORESERVE)
        flags |= MAP_NORESERVE;
    return sys_mmap(operation->address, operation->length, (int)operation->protection, flags | MAP_FIXED, fd,
                    operation->offset);
}

static long map_anonymous(const struct operation *operation) {
    struct operation anonymous = *operation;
    anonymous.offset = 0;
    // The main thread's stack is marked as one that grows down. If a library needs an executable stack, glibc calls
    // mprotect with PROT_GROWSDOWN, which fails for memory without that mark.
    int flags = operation->flags & OPERATION_STACK ? MAP_GROWSDOWN : 0;
    return map(&anonymous, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1);
}

static long map_data(struct thaw *t, const struct operation *operation) {
    long result = map(operation, MAP_PRIVATE, t->image_fd);
    if (result != -EPERM || !(operation->protection & PROT_EXEC))
        return result;
    result = map_anonymous(operation); // copies the pages: the image's file system is mounted noexec
    if (!SYS_FAILED(result))
        copy_in(t, operation);
    return result;
}

// Opens the file that an operation needs. Operations on one file follow each other, so only one file is open at a time.
static int file_of(struct thaw *t, uint32_t index, int flags) {
    static uint32_t open_index = NO_INDEX;
    static int fd = -1, open_flags;
    if (index == open_index && flags == open_flags)
        return fd;
    if (fd >= 0)
        sys_close(fd);
    fd = -1;
    open_index = index;
    open_flags = flags;
    if (index == NO_INDEX)
        return -1;
    const struct file_identity *file = SECTION(t, struct file_identity, SECTION_FILES) + index;
    fd = sys_open(string_at(t, file->path), flags | O_CLOEXEC, 0);
    file_must_match(t, index, fd);
    return fd;
}

static long map_one(struct thaw *t, const struct operation *operation) {
    switch (operation->kind) {
    case OPERATION_ANONYMOUS:
        return map_anonymous(operation);
    case OPERATION_FILE:
        return map(operation, MAP_PRIVATE, file_of(t, operation->index, O_RDONLY));
    case OPERATION_FILE_SHARED: {
        int flags = operation->protection & PROT_WRITE ? O_RDWR : O_RDONLY;
        return map(operation, MAP_SHARED, file_of(t, operation->index, flags));
    }
    case OPERATION_OBJECT:
        return map(operation, MAP_SHARED, object_descriptor(t, operation->index));
    case OPERATION_DATA:
        return map_data(t, operation);
    default:
        copy_in(t, operation);
        return 0;
    }
}

// Whether the image is a file of FUSE, whose contents perhaps arrive while they are used.
static int is_arriving(const struct thaw *t) {
    struct statfs status;
    return sys3(SYS_fstatfs, t->image_fd, (long)&status, 0) == 0 && status.f_type == FUSE_MAGIC;
}

// Gives the memory the advice that it had at the freeze. Errors matter only for MADV_WIPEONFORK and MADV_DONTFORK,
// which decide what a child process sees; other advice only affects speed or core dumps. MADV_HUGEPAGE lets each first
// access to a file read four MiB, which takes longer than anything it saves if the file still arrives.
static void give_advice(const struct operation *operation, int arriving) {
    static const struct {
        uint32_t bit;
        int advice;
    } known[] = {
        {ADVICE_DONTFORK, MADV_DONTFORK},     {ADVICE_DONTDUMP, MADV_DONTDUMP},   {ADVICE_HUGEPAGE, MADV_HUGEPAGE},
        {ADVICE_NOHUGEPAGE, MADV_NOHUGEPAGE}, {ADVICE_MERGEABLE, MADV_MERGEABLE}, {ADVICE_WIPEONFORK, MADV_WIPEONFORK},
        {ADVICE_SEQUENTIAL, MADV_SEQUENTIAL}, {ADVICE_RANDOM, MADV_RANDOM},
    };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        if (!(operation->advice & known[i].bit))
            continue;
        if (arriving && operation->kind == OPERATION_DATA && known[i].bit == ADVICE_HUGEPAGE)
            continue;
        long result = sys_madvise(operation->address, operation->length, known[i].advice);
        if (result < 0 && known[i].bit & (ADVICE_WIPEONFORK | ADVICE_DONTFORK))
            thaw_fail("MADV_WIPEONFORK or MADV_DONTFORK cannot be set again", "", result);
    }
    if (operation->advice & ADVICE_LOCKED)
        sys3(SYS_mlock2, (long)operation->address, (long)operation->length, 1 /* MLOCK_ONFAULT */);
}

// Records the image's device and inode as /proc/self/maps shows them; on some file systems fstat returns other numbers.
// The functions of libc_patches.c recognise the image's memory by these numbers.
static void identify_image(struct thaw *t, const struct operation *operation) {
    struct vma vma;
    if (t->image_inode || operation->kind != OPERATION_DATA || vma_at(operation->address, &vma, t->by_text) ||
        vma.start > operation->address || !vma.inode)
        return;
    t->image_device = vma.device;
    t->image_inode = vma.inode;
}

void stage_memory(struct thaw *t) {
    make_files_own(t);
    const struct operation *operations = SECTION(t, struct operation, SECTION_OPERATIONS);
    int arriving = is_arriving(t);
    for (uint32_t i = 0; i < COUNT(t, SECTION_OPERATIONS); i++) {
        const struct operation *operation = &operations[i];
        long result = map_one(t, operation);
        if (SYS_FAILED(result))
            thaw_fail("memory cannot be mapped", "", result);
        if (operation->advice)
            give_advice(operation, arriving);
        identify_image(t, operation);
    }
    file_of(t, NO_INDEX, O_RDONLY);
    const struct changed_word *words = SECTION(t, struct changed_word, SECTION_WORDS);
    for (uint32_t i = 0; i < COUNT(t, SECTION_WORDS); i++)
        *(volatile uint64_t *)words[i].address = words[i].value;
}
