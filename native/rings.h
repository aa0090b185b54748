// Runs in freeze and in thaw. Makes an io_uring in memory of the process. A ring in the kernel's memory could not be
// mapped at a given address.

#ifndef THAWD_RINGS_H
#define THAWD_RINGS_H

#include <linux/io_uring.h>
#include <stddef.h>

#include "image.h"
#include "sys.h"

// Linux 6.5; since 6.12 the pages need not be contiguous. Source: include/uapi/linux/io_uring.h.
#define SETUP_NO_MMAP (1u << 14)

// The field user_addr of both structs of offsets. Kernel headers before Linux 6.5 call it resv2.
static inline __u64 *last_field(void *offsets, size_t bytes) {
    return (__u64 *)((char *)offsets + bytes - sizeof(__u64));
}

// Makes a ring in the memory that `ring` names, which is anonymous and writable; returns its descriptor, or -errno.
static inline long ring_in_memory(const struct ring_state *ring, struct io_uring_params *made) {
    *made = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE | SETUP_NO_MMAP, .cq_entries = ring->completions};
    *last_field(&made->cq_off, sizeof made->cq_off) = ring->rings;
    *last_field(&made->sq_off, sizeof made->sq_off) = ring->requests;
    return sys3(SYS_io_uring_setup, ring->entries, (long)made, 0);
}

#endif
