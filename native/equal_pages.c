// Runs in thawed copies. Gives back pages that a copy has written to, and whose contents are equal to the image's
// again.
//
// A page that a copy writes to becomes the copy's own. Many writes are undone later: a count of references goes up and
// down again. The kernel does not notice that. So this module compares the copy's own pages with the image, and
// discards the equal ones with madvise(MADV_DONTNEED). The next access maps the image's page again, with the same
// contents.
//
// Nothing may write to a page between its comparison and the madvise, because the write would be lost:
// - other threads: the process must have only one;
// - signal handlers: all signals are blocked meanwhile;
// - the kernel, on its own: it writes to a thread's struct rseq, so the pages around the thread's data are skipped. For
//   asynchronous I/O it writes to any buffer, so nothing is done in a process that has set up such I/O;
// - this code: it writes only to its stack, whose mapping is skipped, and to memory that is not mapped from an image.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "freeze_parts.h"
#include "pagemap.h"
#include "sys.h"
#include "vma.h"

// Reserved for the text of /proc/self/maps. Only used pages take memory.
#define TEXT_BYTES (8u << 20)
#define REGIONS 512
// The C library keeps a thread's data within this distance of the thread pointer.
#define THREAD_DATA (64u << 10)

// See park_threads.c.
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

struct search {
    char *text;                  // /proc/self/maps, NUL-terminated
    struct page_region *regions; // room for REGIONS
    int pagemap_fd;
    uint64_t thread, rseq;             // thread pointer; address of the thread's struct rseq, or 0
    const char *files[LANDING_IMAGES]; // where each image is mapped whole; NULL: not mapped yet, or it cannot be read
    uint64_t file_bytes[LANDING_IMAGES];
    uint32_t tried;     // a bit for each image: whether mapping it whole was tried
    int64_t given_back; // pages
};

static uint64_t thread_pointer(void) {
    uint64_t value;
    __asm__("mov %%fs:0, %0" : "=r"(value)); // the first word of a thread's data is its own address
    return value;
}

// The number of links of this folder is the number of threads and 2. Source: fs/proc/base.c, proc_task_getattr.
static int is_alone(void) {
    struct stat found;
    return sys6(SYS_newfstatat, -100 /* AT_FDCWD */, (long)"/proc/self/task", (long)&found, 0, 0, 0) == 0 &&
           found.st_nlink == 3;
}

// Whether the process is under a seccomp filter. A filter may kill the process for a system call that it does not list.
static int is_filtered(void) {
    return sys_prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 0;
}

// Returns 0, or -1 if the text cannot be read or is too long.
static int read_maps(struct search *s) {
    int fd = sys_open("/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    uint64_t have = 0;
    long got = fd;
    while (fd >= 0 && have < TEXT_BYTES - 1 && (got = sys_read(fd, s->text + have, TEXT_BYTES - 1 - have)) > 0)
        have += (uint64_t)got;
    if (fd >= 0)
        sys_close(fd);
    return fd >= 0 && got == 0 ? 0 : -1;
}

static char *end_of_line(char *line) {
    while (*line && *line != '\n')
        line++;
    return line;
}

// Whether the kernel may be writing to this process's memory for asynchronous I/O.
static int has_asynchronous_io(const struct search *s) {
    for (const char *at = s->text; *at; at++)
        if (*at == '[' && (text_begins(at, "[aio]") || text_begins(at, "[io_uring]")))
            return 1;
    return 0;
}

// The number of the image that `vma` maps; -1: none.
static int image_number(const struct vma *vma) {
    for (uint32_t i = 0; i < thawd_landing.image_count; i++) {
        const struct landed_image *image = &thawd_landing.images[i];
        if (vma->inode == image->inode && vma->device == image->device)
            return (int)i;
    }
    return -1;
}

// Maps the image with this number whole. If another file has its path by now, nothing is mapped.
static void map_file(struct search *s, int number, const char *path) {
    s->tried |= 1u << number;
    int fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return;
    struct stat found;
    if (sys3(SYS_fstat, fd, (long)&found, 0) == 0 && S_ISREG(found.st_mode) && found.st_size >= IMAGE_PAGE) {
        uint64_t bytes = (uint64_t)found.st_size / IMAGE_PAGE * IMAGE_PAGE;
        long at = sys_mmap(0, bytes, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
        struct vma mapped;
        if (!SYS_FAILED(at) && !vma_at((uint64_t)at, &mapped, 0) && image_number(&mapped) == number) {
            s->files[number] = (const char *)at;
            s->file_bytes[number] = bytes;
        } else if (!SYS_FAILED(at)) {
            sys_munmap((uint64_t)at, bytes);
        }
    }
    sys_close(fd);
}

static int is_threads_data(const struct search *s, uint64_t page) {
    return (page + THREAD_DATA >= s->thread && page <= s->thread + THREAD_DATA) ||
           (s->rseq && page <= s->rseq && s->rseq < page + IMAGE_PAGE);
}

static void give_back(struct search *s, uint64_t start, uint64_t end) {
    if (start < end && sys_madvise(start, end - start, MADV_DONTNEED) == 0)
        s->given_back += (int64_t)((end - start) / IMAGE_PAGE);
}

// Compares the pages from `start` to `end` of `vma` with the image that is mapped whole at `file`.
static void compare(struct search *s, const struct vma *vma, uint64_t start, uint64_t end, const char *file) {
    uint64_t equal = start; // the pages from here to `start` are equal
    for (; start < end; start += IMAGE_PAGE) {
        const char *same = file + vma->offset + (start - vma->start);
        if (!is_threads_data(s, start) && !__builtin_memcmp((const void *)start, same, IMAGE_PAGE))
            continue;
        give_back(s, equal, start);
        equal = start + IMAGE_PAGE;
    }
    give_back(s, equal, start);
}

// Finds the copy's own pages in a mapping of the image with this number. Pages in the swap are left there.
static void search_mapping(struct search *s, const struct vma *vma, int number, const char *path) {
    uint64_t at = vma->start;
    while (at < vma->end) {
        struct pm_scan_arg arg = {
            .size = sizeof arg,
            .start = at,
            .end = vma->end,
            .vec = (uint64_t)s->regions,
            .vec_len = REGIONS,
            .category_inverted = PAGE_IS_FILE | PAGE_IS_PFNZERO | PAGE_IS_SWAPPED,
            .category_mask = PAGE_IS_FILE | PAGE_IS_PFNZERO | PAGE_IS_SWAPPED | PAGE_IS_PRESENT,
            .return_mask = PAGE_IS_PRESENT,
        };
        long got = sys_ioctl(s->pagemap_fd, PAGEMAP_SCAN_REQUEST, &arg);
        if (got <= 0)
            return;
        if (!(s->tried & 1u << number))
            map_file(s, number, path);
        if (!s->files[number] || vma->offset + (vma->end - vma->start) > s->file_bytes[number])
            return;
        uint64_t next = arg.walk_end;
        for (long i = 0; i < got; i++) {
            uint64_t start = s->regions[i].start > at ? s->regions[i].start : at; // each page once
            uint64_t end = s->regions[i].end < vma->end ? s->regions[i].end : vma->end;
            if (start < end)
                compare(s, vma, start, end, s->files[number]);
            next = next > end ? next : end; // see `scan` in freeze_find_pages.c
        }
        if (next <= at)
            return;
        at = next;
    }
}

static void search_all(struct search *s) {
    uint64_t stack = (uint64_t)__builtin_frame_address(0);
    for (char *line = s->text, *end; *line; line = *end ? end + 1 : end) {
        struct vma vma;
        const char *path = vma_parse(line, &vma);
        end = end_of_line(line);
        int number = image_number(&vma);
        if (number < 0 || vma.shared || !(vma.protection & PROT_READ) || (vma.start <= stack && stack < vma.end))
            continue;
        skip_spaces(&path);
        char ended = *end;
        *end = 0;
        search_mapping(s, &vma, number, path);
        *end = ended;
    }
}

static int64_t share(void) {
    uint64_t bytes = TEXT_BYTES + REGIONS * sizeof(struct page_region);
    long room = sys_mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (SYS_FAILED(room))
        return 0;
    struct search s = {
        .text = (char *)room,
        .regions = (struct page_region *)(room + TEXT_BYTES),
        .thread = thread_pointer(),
    };
    s.rseq = &__rseq_size && __rseq_size ? s.thread + (uint64_t)__rseq_offset : 0;
    s.pagemap_fd = sys_open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
    if (s.pagemap_fd >= 0) {
        if (read_maps(&s) == 0 && !has_asynchronous_io(&s))
            search_all(&s);
        sys_close(s.pagemap_fd);
    }
    for (int i = 0; i < LANDING_IMAGES; i++)
        if (s.files[i])
            sys_munmap((uint64_t)s.files[i], s.file_bytes[i]);
    sys_munmap((uint64_t)room, bytes);
    return s.given_back;
}

int64_t thawd_share_equal_pages(void) {
    if (!thawd_landing.image_count || is_filtered() || !is_alone())
        return 0;
    uint64_t all = ~UINT64_C(0), before;
    if (sys6(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, (long)&all, (long)&before, sizeof all, 0, 0) < 0)
        return 0;
    int64_t pages = share();
    sys6(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, (long)&before, 0, sizeof before, 0, 0);
    return pages;
}
