// Runs in thawed copies. Discards memory that is mapped from an image. A hole is a range of pages that the program has
// released by madvise; discard.c says how holes are made.

#ifndef THAWD_DISCARD_H
#define THAWD_DISCARD_H

#include "vma.h"

// Applies `advice` (MADV_DONTNEED, MADV_DONTNEED_LOCKED or MADV_FREE) to [start, end) of the mapping `vma`, with the
// effect that madvise(2) documents. `vma` must map an image in place of anonymous memory. Returns 0 or -errno.
// `by_text`: see vma.h.
long hole_make(const struct vma *vma, uint64_t start, uint64_t end, int advice, int by_text);

// Does the same as `hole_make` several times as fast, for a small hole in memory that `hole_make` has marked (see the
// beginning of discard.c). Returns 1 when done, and 0 if the memory is not marked or must not be changed.
int hole_make_known(uint64_t start, uint64_t end, int advice);

// Whether a readable page holds only zeros.
int is_zero(uint64_t page);

#endif
