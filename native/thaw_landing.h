// Used by freeze and by thaw. The landing: the struct through which thaw passes data to a copy. It is the variable
// `thawd_landing` of libthawd_freeze.so, so it is part of the frozen memory; the image's header has its address.
//
// What is too long for the struct is in the parcel: memory that freeze reserves and thaw fills with the copy's
// arguments, environment variables and thread ids. The landing has their addresses.

#ifndef THAWD_LANDING_H
#define THAWD_LANDING_H

#include <stdint.h>

#define LANDING_IMAGES 8
#define HOLD_S 5

// An image from which memory of this process may be mapped: the image of the last thaw, or, if the process was frozen
// and thawed several times, the image of an earlier thaw.
struct landed_image {
    uint64_t device, inode;    // as /proc/self/maps shows them
    uint64_t file;             // record in section `files` of the newest image; NO_INDEX: no memory of it is mapped
    uint64_t anonymous_offset; // data from here on belongs to anonymous memory, data before it to pages of files
    uint64_t ranges;           // address in the parcel of the mapped ranges: pairs of start and end, in order
    uint64_t range_count;
};

// Flag in the start address of a range: its pages belong to the mapping of a file, from which they differed.
#define RANGE_OF_FILE UINT64_C(1)

struct landing {
    uint32_t restored;    // 0 in the original, 1 in a copy; thaw sets it when all memory is restored
    uint32_t image_count; // number of `images`: at most one for each thaw so far
    // While not 0, all threads of a copy wait except for the one that had this id at the freeze. See freeze_flag.
    int32_t runs_alone;
    uint32_t hold_expired;           // 1: a thread has waited for HOLD_S seconds and then continued
    uint64_t moved;                  // 1 once mremap has moved memory of an image: the ranges are then out of date
    uint64_t started_ns;             // CLOCK_MONOTONIC at the entry of thaw
    uint64_t arguments, environment; // addresses in the parcel of NULL-terminated arrays of strings
    uint64_t tids;                   // address in the parcel of pairs: thread id at the freeze, current thread id
    uint64_t tid_count;
    uint64_t thread_cpu;         // address in the parcel of the processor time of each thread of `tids`, nanoseconds
    uint64_t cpu_ns;             // processor time of the frozen process, including its original's if it was a copy
    uint64_t user_us, system_us; // the same time, divided into user and system time
    uint64_t children_user_us, children_system_us;
    int64_t ticks;       // what times(2) returned at the freeze, with `ticks_ahead`
    int64_t ticks_ahead; // added to what times(2) returns, so that it does not go back
    struct landed_image images[LANDING_IMAGES];
};

#endif
