// Runs in thaw's address space. Makes the frozen process's io_urings again at their addresses. No thread of the copy
// runs yet.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <sys/mman.h>

#include "rings.h"
#include "thaw.h"

static void map_at(const struct descriptor *descriptor, uint64_t address, uint64_t bytes) {
    long at = sys_mmap(address, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE, -1, 0);
    if (SYS_FAILED(at) || (uint64_t)at != address)
        fail_descriptor(descriptor, "the old address of an io_uring cannot be mapped: descriptor ",
                        SYS_FAILED(at) ? at : -EEXIST);
}

// Advances the new ring's tail of submissions and head of completions to the values of the old ring, because the
// program may remember them. It does this with requests that do nothing; a zeroed request is one.
static void bring_forward(const struct descriptor *descriptor, const struct ring_state *ring,
                          const struct io_uring_params *made, int fd) {
    uint32_t *tail = (uint32_t *)(ring->rings + made->sq_off.tail);
    uint32_t *completed = (uint32_t *)(ring->rings + made->cq_off.head);
    for (uint32_t done = 0; done < ring->submitted;) {
        uint32_t left = ring->submitted - done, count = left < ring->entries ? left : ring->entries;
        __atomic_store_n(tail, done + count, __ATOMIC_RELEASE);
        long result = sys6(SYS_io_uring_enter, fd, count, count, IORING_ENTER_GETEVENTS, 0, 0);
        if (result != (long)count)
            fail_descriptor(descriptor, "an io_uring does not work: descriptor ", SYS_FAILED(result) ? result : -EIO);
        done += count;
        __atomic_store_n(completed, done, __ATOMIC_RELEASE);
    }
}

int make_ring(struct thaw *t, const struct descriptor *descriptor) {
    const struct ring_state *ring = SECTION(t, struct ring_state, SECTION_RINGS) + descriptor->index;
    struct io_uring_params made;
    map_at(descriptor, ring->rings, ring->rings_bytes);
    map_at(descriptor, ring->requests, ring->requests_bytes);
    int fd = (int)ring_in_memory(ring, &made);
    if (fd < 0)
        fail_descriptor(descriptor, "an io_uring cannot be made for descriptor ", fd);
    if (made.sq_entries != ring->entries || made.sq_off.array + ring->entries * UINT64_C(4) > ring->rings_bytes)
        fail_descriptor(descriptor, "this kernel lays out an io_uring differently: descriptor ", -EINVAL);
    uint32_t *list = (uint32_t *)(ring->rings + made.sq_off.array);
    for (uint32_t i = 0; i < ring->entries; i++)
        list[i] = i;
    bring_forward(descriptor, ring, &made, fd);
    return fd;
}
