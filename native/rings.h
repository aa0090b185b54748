// Runs in freeze and in thaw. Makes an io_uring in memory of the process. A ring in the kernel's memory could not be
// mapped at a given address.

#ifndef THAWD_RINGS_H
#define THAWD_RINGS_H

#include <linux/io_uring.h>

#include "image.h"
#include "sys.h"

// Linux 6.5; since 6.12 the pages need not be contiguous. Source: include/uapi/linux/io_uring.h.
#define SETUP_NO_MMAP (1u << 14)

// Makes a ring in the memory that `ring` names, which is anonymous and writable; returns its descriptor, or -errno.
static inline long ring_in_memory(const struct ring_state *ring, struct io_uring_params *made) {
    *made = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE | SETUP_NO_MMAP, .cq_entries = ring->completions};
    made->cq_off.resv2 = ring->rings;    // the field that newer kernel headers call user_addr
    made->sq_off.resv2 = ring->requests; // the same
    return sys3(SYS_io_uring_setup, ring->entries, (long)made, 0);
}

#endif
