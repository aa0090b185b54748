// Runs in the process that is frozen. Describes io_urings without pending requests. Event loops such as libuv's, which
// uvloop uses, have such io_urings. A copy makes a ring of the same size at the same address and advances it to the
// same counts.

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "descriptors.h"
#include "rings.h"
#include "sys.h"

// To advance its new ring to the old ring's counts, a copy sends at most this number of requests, one after another.
#define MAX_SUBMITTED 65536

static const char is_busy[] = "an io_uring has pending requests, or was used too often to be made again; freeze before "
                              "it is used, or make it on the first invocation: descriptor ";
static const char is_unlike[] =
    "an io_uring is of a kind that cannot be frozen; make it on the first invocation: descriptor ";

int ring_note_mapping(struct freezing *f, const struct mapping *mapping) {
    struct mapping *noted = table_add(&f->ring_mappings);
    if (!noted)
        return refuse(f, "mappings", "there are more io_urings than an image can hold; close some before the freeze",
                      "");
    *noted = *mapping;
    return 0;
}

// Reads a number from fdinfo. Source: io_uring/fdinfo.c.
static uint64_t take(const struct look *look, const char *name) {
    const char *at = find_line(look->info, name);
    if (!at)
        return UINT64_MAX;
    skip_spaces(&at);
    if (text_begins(at, "0x")) {
        at += 2;
        return take_number(&at, 16);
    }
    return take_number(&at, 10);
}

// Whether a multishot request is waiting, or completions have overflowed.
static int has_waiting(const struct look *look) {
    return find_line(look->info, "  op=") || find_line(look->info, "  user_data=");
}

static int is_idle(const struct look *look) {
    uint64_t submitted = take(look, "SqTail:"), completed = take(look, "CqTail:");
    return !has_waiting(look) && submitted == completed && submitted <= MAX_SUBMITTED &&
           submitted == take(look, "SqHead:") && submitted == take(look, "CachedSqHead:") &&
           completed == take(look, "CqHead:") && completed == take(look, "CachedCqTail:");
}

// Finds the two mappings of an io_uring: of its rings and of its requests. Returns false if it has other mappings.
static int find_mappings(struct freezing *f, const struct look *look, struct ring_state *to) {
    int found = 0;
    for (uint32_t i = 0; i < f->ring_mappings.count; i++) {
        const struct mapping *mapping = AT(f->ring_mappings, struct mapping, i);
        if (mapping->inode != look->status.st_ino)
            continue;
        found++;
        if (mapping->offset == IORING_OFF_SQ_RING) {
            to->rings = mapping->start;
            to->rings_bytes = mapping->end - mapping->start;
        } else if (mapping->offset == IORING_OFF_SQES) {
            to->requests = mapping->start;
            to->requests_bytes = mapping->end - mapping->start;
        }
    }
    return found == 2 && to->rings && to->requests;
}

static uint64_t whole_pages(uint64_t bytes) {
    return (bytes + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
}

static int is_zero(uint64_t address, uint64_t bytes) {
    for (const unsigned char *at = (const unsigned char *)address; bytes; bytes--)
        if (*at++)
            return 0;
    return 1;
}

// Whether entry N of the list of requests is request N, as in the ring that a copy makes. A ring without such a list
// (IORING_SETUP_NO_SQARRAY) has zeros in its place and is used in order: each request so far has filled the next entry.
static int lists_in_order(const struct ring_state *ring, const uint32_t *list) {
    int in_order = 1;
    for (uint32_t i = 0; i < ring->entries; i++)
        in_order &= list[i] == i;
    if (in_order || !is_zero((uint64_t)list, ring->entries * UINT64_C(4)))
        return in_order;
    uint32_t used = ring->submitted < ring->entries ? ring->submitted : ring->entries;
    for (uint32_t i = 1; i < used; i++)
        if (is_zero(ring->requests + i * sizeof(struct io_uring_sqe), sizeof(struct io_uring_sqe)))
            return 0;
    return 1;
}

// Whether a ring made with the parameters `made` has the same layout as `ring`, including the list of requests.
static int is_like(const struct ring_state *ring, const struct io_uring_params *made) {
    uint64_t list_end = made->sq_off.array + made->sq_entries * UINT64_C(4);
    uint64_t completions_end = made->cq_off.cqes + made->cq_entries * (uint64_t)sizeof(struct io_uring_cqe);
    if (!(made->features & IORING_FEAT_SINGLE_MMAP) || made->sq_entries != ring->entries ||
        made->cq_entries != ring->completions ||
        whole_pages(list_end > completions_end ? list_end : completions_end) != ring->rings_bytes ||
        whole_pages(ring->entries * (uint64_t)sizeof(struct io_uring_sqe)) != ring->requests_bytes)
        return 0;
    return lists_in_order(ring, (const uint32_t *)(ring->rings + made->sq_off.array));
}

// Whether the kernel accepts rings of several pages that are not contiguous (since Linux 6.12).
static int takes_any_pages(void) {
    struct utsname name;
    sys3(SYS_uname, (long)&name, 0, 0);
    const char *at = name.release;
    uint64_t major = take_number(&at, 10);
    at += *at == '.';
    uint64_t minor = take_number(&at, 10);
    return major > 6 || (major == 6 && minor >= 12);
}

// Makes a ring of the same size as a copy would, and closes it; returns whether this kernel can do that.
static int make_another(const struct ring_state *ring, struct io_uring_params *made) {
    struct ring_state other = *ring;
    uint64_t bytes = ring->rings_bytes + ring->requests_bytes;
    if ((ring->rings_bytes > IMAGE_PAGE || ring->requests_bytes > IMAGE_PAGE) && !takes_any_pages())
        return 0;
    long at = sys_mmap(0, bytes, 3, 0x22 /* PRIVATE, ANONYMOUS */, -1, 0);
    if (SYS_FAILED(at))
        return 0;
    other.rings = (uint64_t)at;
    other.requests = other.rings + ring->rings_bytes;
    long fd = ring_in_memory(&other, made);
    if (!SYS_FAILED(fd))
        sys_close((int)fd);
    sys_munmap((uint64_t)at, bytes);
    return !SYS_FAILED(fd);
}

int ring_describe(struct freezing *f, struct look *look) {
    struct ring_state ring = {
        .entries = (uint32_t)take(look, "SqMask:") + 1,
        .completions = (uint32_t)take(look, "CqMask:") + 1,
        .submitted = (uint32_t)take(look, "SqTail:"),
    };
    const char *thread = find_line(look->info, "SqThread:");
    if (thread)
        skip_spaces(&thread);
    if (!find_mappings(f, look, &ring) || !thread || *thread != '-' || take(look, "UserFiles:") ||
        take(look, "UserBufs:"))
        return refuse_descriptor(f, look, is_unlike);
    if (!is_idle(look))
        return refuse_descriptor(f, look, is_busy);
    struct io_uring_params made;
    if (!make_another(&ring, &made))
        return refuse_descriptor(f, look, is_unlike);
    struct ring_state *to = is_like(&ring, &made) ? table_add(&f->sections[SECTION_RINGS]) : 0;
    if (!to)
        return refuse_descriptor(f, look, is_unlike);
    *to = ring;
    look->to->kind = DESCRIPTOR_RING;
    look->to->index = f->sections[SECTION_RINGS].count - 1;
    f->ring_mappings_taken += 2;
    return 0;
}

int rings_settle(struct freezing *f) {
    if (f->ring_mappings_taken == f->ring_mappings.count)
        return 0;
    return refuse(f, "descriptors", "a mapped io_uring has no open descriptor; unmap it before the freeze", "");
}
