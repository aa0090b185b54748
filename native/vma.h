// Runs in freeze and in thaw. Finds the mapping at an address of this process.

#ifndef THAWD_VMA_H
#define THAWD_VMA_H

#include <stdint.h>

struct vma {
    uint64_t start, end;
    uint64_t offset; // in the file
    uint64_t device; // major << 32 | minor, as /proc/self/maps shows it; 0: anonymous
    uint64_t inode;
    int protection; // PROT_ bits
    int shared;
};

// Finds the mapping at `address`, or the next one above it. Returns 0, -ENOENT when there is none, or -errno.
// Source: fs/proc/task_mmu.c, PROCMAP_QUERY (Linux 6.11). With `by_text`, or on an older kernel, /proc/self/maps is
// read instead.
int vma_at(uint64_t address, struct vma *found, int by_text);

// Reads a line of /proc/self/maps, and returns the position after the inode's number. The file's path comes next, after
// spaces.
const char *vma_parse(const char *line, struct vma *found);

#endif
