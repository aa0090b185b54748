// Runs in the process that is frozen. Tests that io_urings without pending requests get the same addresses and counts.

#include "refusing.h"

#include <linux/io_uring.h>
#include <sys/epoll.h>

#define ENTRIES 8
#define SETUP_NO_SQARRAY (1u << 16)

struct ring {
    int fd;
    struct io_uring_params made;
    char *rings;
    struct io_uring_sqe *requests;
    uint32_t tail; // a copy of the ring's tail in private memory, as liburing keeps one
};

static uint32_t *field(const struct ring *ring, uint32_t offset) {
    return (uint32_t *)(void *)(ring->rings + offset);
}

static struct ring make_ring(uint32_t flags) {
    struct ring ring = {.made = {.flags = flags}};
    ring.fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &ring.made);
    if (ring.fd < 0)
        not_here("io_uring is not allowed");
    uint32_t end = ring.made.cq_off.cqes + ring.made.cq_entries * (uint32_t)sizeof(struct io_uring_cqe);
    uint32_t list_end = ring.made.sq_off.array + ring.made.sq_entries * 4;
    ring.rings = mmap(NULL, list_end > end ? list_end : end, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd,
                      IORING_OFF_SQ_RING);
    ring.requests = mmap(NULL, ENTRIES * sizeof *ring.requests, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                         ring.fd, IORING_OFF_SQES);
    CHECK(ring.rings != MAP_FAILED && ring.requests != (void *)MAP_FAILED);
    for (uint32_t i = 0; i < ENTRIES && !(flags & SETUP_NO_SQARRAY); i++)
        field(&ring, ring.made.sq_off.array)[i] = i;
    return ring;
}

static void submit(struct ring *ring, struct io_uring_sqe request, uint32_t completions) {
    CHECK_EQUAL(__atomic_load_n(field(ring, ring->made.sq_off.head), __ATOMIC_ACQUIRE), ring->tail);
    ring->requests[ring->tail & (ENTRIES - 1)] = request;
    __atomic_store_n(field(ring, ring->made.sq_off.tail), ++ring->tail, __ATOMIC_RELEASE);
    CHECK_EQUAL(syscall(SYS_io_uring_enter, ring->fd, 1, completions, IORING_ENTER_GETEVENTS, NULL, 0), 1);
}

static struct io_uring_cqe complete(struct ring *ring) {
    uint32_t *head = field(ring, ring->made.cq_off.head), *tail = field(ring, ring->made.cq_off.tail);
    WAIT_UNTIL(__atomic_load_n(tail, __ATOMIC_ACQUIRE) != *head);
    uint32_t at = *head & (ring->made.cq_entries - 1);
    struct io_uring_cqe *all = (struct io_uring_cqe *)(void *)(ring->rings + ring->made.cq_off.cqes);
    struct io_uring_cqe one = all[at];
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return one;
}

static void nothing(struct ring *ring, uint64_t data) {
    submit(ring, (struct io_uring_sqe){.opcode = IORING_OP_NOP, .user_data = data}, 1);
    CHECK_EQUAL(complete(ring).user_data, data);
}

static void comes_back(uint32_t flags, int before) {
    struct ring ring = make_ring(flags);
    int ends[2];
    char text[8] = "";
    CHECK_EQUAL(pipe(ends), 0);
    for (int i = 0; i < before; i++)
        nothing(&ring, 100 + (uint64_t)i);
    freeze_here();
    for (uint64_t i = 1; i <= 3 * ENTRIES; i++)
        nothing(&ring, i);
    submit(&ring,
           (struct io_uring_sqe){.opcode = IORING_OP_READ,
                                 .fd = ends[0],
                                 .addr = (uint64_t)text,
                                 .len = sizeof text,
                                 .off = UINT64_MAX,
                                 .user_data = 7},
           0);
    CHECK_EQUAL(write(ends[1], "read", 4), 4);
    struct io_uring_cqe done = complete(&ring);
    CHECK_EQUAL(done.user_data, 7);
    CHECK_EQUAL(done.res, 4);
    CHECK(strcmp(text, "read") == 0);
}

CASE(ring, "an io_uring that was used is restored at its address and takes requests") {
    comes_back(0, 3 * ENTRIES + 3);
}

CASE(fresh_ring, "an io_uring that was not used is restored") {
    comes_back(0, 0);
}

CASE(ring_without_list, "an io_uring without the array that lists its requests (IORING_SETUP_NO_SQARRAY) is restored") {
    comes_back(SETUP_NO_SQARRAY, 5);
}

CASE(busy_ring, "an io_uring with a pending request is refused") {
    struct ring ring = make_ring(0);
    int ends[2];
    char byte;
    CHECK_EQUAL(pipe(ends), 0);
    nothing(&ring, 1);
    submit(&ring,
           (struct io_uring_sqe){
               .opcode = IORING_OP_READ, .fd = ends[0], .addr = (uint64_t)&byte, .len = 1, .off = UINT64_MAX},
           0);
    begin();
    expect_refusal("an io_uring has pending requests", "first invocation");
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    complete(&ring);
    freeze_after_all();
}

CASE(armed_ring, "an io_uring with a multishot request is refused, even after as many completions as requests") {
    struct ring ring = make_ring(0);
    int ends[2];
    char byte;
    CHECK_EQUAL(pipe(ends), 0);
    submit(&ring,
           (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD,
                                 .fd = ends[0],
                                 .len = IORING_POLL_ADD_MULTI,
                                 .poll32_events = EPOLLIN,
                                 .user_data = 9},
           0);
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    CHECK_EQUAL(complete(&ring).user_data, 9);
    CHECK_EQUAL(read(ends[0], &byte, 1), 1);
    begin();
    expect_refusal("an io_uring has pending requests", "first invocation");
    CHECK_EQUAL(munmap(ring.rings, PAGE), 0);
    CHECK_EQUAL(munmap(ring.requests, PAGE), 0);
    close(ring.fd);
    freeze_after_all();
}

CASE(reordered_ring, "an io_uring with its requests listed in another order is refused") {
    struct ring ring = make_ring(0);
    field(&ring, ring.made.sq_off.array)[0] = 5;
    begin();
    expect_refusal("an io_uring is of a kind", "first invocation");
    field(&ring, ring.made.sq_off.array)[0] = 0;
    freeze_after_all();
}
