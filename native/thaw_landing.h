// Runs in both address spaces. Where a thawed copy lands: a struct inside libthawd_freeze.so's own data, whose address
// the image's header tells thaw. Not on disk as such; it is part of the frozen memory.

#ifndef THAWD_LANDING_H
#define THAWD_LANDING_H

#include <stdint.h>

#define LANDING_IMAGES 8

// An image that memory of this process may be mapped from.
struct landed_image {
    uint64_t device, inode;
    uint64_t anonymous_offset; // data from here on replaces anonymous memory, data before it pages of files
    uint64_t ranges;           // address in the parcel of pairs, start and end, rising: the mapped ranges
    uint64_t range_count;
};

// Flag in the start of a range whose pages differed from a file's.
#define RANGE_OF_FILE UINT64_C(1)

struct landing {
    uint32_t restored;               // 0 in the original, 1 in a copy; thaw sets it once all memory is back
    uint32_t image_count;            // a copy that is frozen and thawed again adds one
    uint64_t moved;                  // 1 once memory of an image was moved: the ranges are then out of date
    uint64_t started_ns;             // CLOCK_MONOTONIC at the entry of thaw
    uint64_t arguments, environment; // addresses in the parcel of NULL-terminated arrays of strings
    uint64_t tids;                   // address in the parcel of pairs: thread id when frozen, thread id now
    uint64_t tid_count;
    uint64_t thread_cpu;         // address in the parcel, for each pair: processor time of the thread, nanoseconds
    uint64_t cpu_ns;             // processor time of the frozen process, all of its earlier lives included
    uint64_t user_us, system_us; // the same time as getrusage(2) divides it
    uint64_t children_user_us, children_system_us;
    struct landed_image images[LANDING_IMAGES];
};

#endif
