// Runs in thawed copies. How image-backed memory is forgotten.

#ifndef THAWD_HOLES_H
#define THAWD_HOLES_H

#include "vma.h"

// Makes [start, end) of the mapping `vma`, which is of an image and stands in for anonymous memory, what madvise(2)
// says of `advice`: MADV_DONTNEED, MADV_DONTNEED_LOCKED or MADV_FREE. 0 or -errno. `by_text`: see vma.h.
long hole_make(const struct vma *vma, uint64_t start, uint64_t end, int advice, int by_text);

// The same for a small hole in memory that `hole_make` knows, several times as fast. 0: it does not know it, or may
// not.
int hole_make_known(uint64_t start, uint64_t end, int advice);

// Whether a page that can be read holds zeros alone.
int is_zero(uint64_t page);

#endif
