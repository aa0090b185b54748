// Runs in freeze and in thaw. Finds the mapping at an address of this process.

#include <errno.h>

#include "sys.h"
#include "text.h"
#include "vma.h"

// Source: include/uapi/linux/fs.h, struct procmap_query.
struct procmap_query {
    uint64_t size, query_flags, query_addr, vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
#define PROCMAP_QUERY_REQUEST 0xc0686611ul // _IOWR('f', 17, struct procmap_query)
#define COVERING_OR_NEXT 0x10
_Static_assert(sizeof(struct procmap_query) == 104, "part of the ioctl's number");

static int by_query(int fd, uint64_t address, struct vma *found) {
    struct procmap_query query = {.size = sizeof query, .query_flags = COVERING_OR_NEXT, .query_addr = address};
    long result = sys_ioctl(fd, PROCMAP_QUERY_REQUEST, &query);
    if (result < 0)
        return (int)result;
    *found = (struct vma){
        .start = query.vma_start,
        .end = query.vma_end,
        .offset = query.vma_offset,
        .device = (uint64_t)query.dev_major << 32 | query.dev_minor,
        .inode = query.inode,
        .protection = (int)(query.vma_flags & 7),
        .shared = (query.vma_flags & 8) != 0,
    };
    return 0;
}

const char *vma_parse(const char *at, struct vma *found) {
    found->start = take_number(&at, 16);
    at++;
    found->end = take_number(&at, 16);
    at++;
    found->protection = (at[0] == 'r') | (at[1] == 'w') << 1 | (at[2] == 'x') << 2;
    found->shared = at[3] == 's';
    at += 5;
    found->offset = take_number(&at, 16);
    at++;
    uint64_t major = take_number(&at, 16);
    at++;
    found->device = major << 32 | take_number(&at, 16);
    at++;
    found->inode = take_number(&at, 10);
    return at;
}

static int by_lines(int fd, uint64_t address, struct vma *found) {
    // The buffer is small: in a copy, the patched madvise calls this function on the stack of the thread that called
    // madvise, and that stack may be small.
    char buffer[2048];
    uint64_t have = 0;
    int line_has_begun = 1; // the buffer begins at the beginning of a line
    for (;;) {
        long got = sys_read(fd, buffer + have, sizeof buffer - 1 - have);
        if (got <= 0)
            return got < 0 ? (int)got : -ENOENT;
        have += (uint64_t)got;
        buffer[have] = 0;
        char *line = buffer;
        for (char *at = buffer; at < buffer + have; at++) {
            // A line with a long path is parsed before its end: all other fields are within the first 200 bytes.
            if (*at != '\n' && !(line_has_begun && at - line == 200))
                continue;
            if (line_has_begun) {
                vma_parse(line, found);
                if (found->end > address)
                    return 0;
            }
            line_has_begun = *at == '\n';
            line = at + 1;
        }
        have = line_has_begun ? (uint64_t)(buffer + have - line) : 0;
        for (uint64_t i = 0; i < have; i++)
            buffer[i] = line[i];
    }
}

int vma_at(uint64_t address, struct vma *found, int by_text) {
    int fd = sys_open("/proc/self/maps", 02000000 /* O_CLOEXEC */, 0);
    if (fd < 0)
        return fd;
    int result = by_text ? -ENOTTY : by_query(fd, address, found);
    if (result == -ENOTTY || result == -EINVAL)
        result = by_lines(fd, address, found);
    sys_close(fd);
    return result;
}
