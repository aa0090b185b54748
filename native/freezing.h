// Runs in the process that is frozen. What the parts of freeze share: one freeze under way, and its tables.
//
// From the moment the other threads stand still nothing here may call the C library: a parked thread may hold any of
// its locks. Scratch memory is one shared anonymous mapping, which no neighbour merges with and which is left out of
// the image.

#ifndef THAWD_FREEZING_H
#define THAWD_FREEZING_H

#include <stdint.h>

#include "freeze.h"
#include "image.h"
#include "landing.h"
#include "text.h"

// Growing records in scratch memory.
struct table {
    unsigned char *base;
    uint32_t count;
    uint32_t record_bytes;
    uint64_t capacity_bytes;
};

#define AT(table, type, index) (&((type *)(table).base)[index])

// The next record of the table, zeroed; NULL when it is full.
void *table_add(struct table *table);

// One line of /proc/self/maps.
struct mapping {
    uint64_t start, end, offset, inode;
    uint64_t device; // major << 32 | minor
    uint32_t protection;
    uint32_t shared;
    uint32_t writable_once; // VM_MAYWRITE
    uint32_t no_reserve;
    uint32_t stack;         // the main thread's
    uint32_t advice;        // enum advice
    uint32_t path;          // offset in SECTION_STRINGS; NO_INDEX: none
    uint32_t object;        // index in SECTION_OBJECTS, once `plan` has run; NO_INDEX: none
    uint32_t deleted;       // its file has no path any more
    uint32_t refused_flags; // hugetlb, device
};

// Pages that must be stored.
struct range {
    uint64_t start, end;
    uint32_t mapping;
    uint32_t of_file; // they differ from a file's, rather than from zeros
};

// What a pipe holds, or one end of a pair of sockets.
struct pipe_contents {
    const void *from;
    uint64_t bytes;      // 0: nothing is stored
    uint32_t descriptor; // index in SECTION_DESCRIPTORS
};

struct inode {
    uint64_t device, number;
};

// Where the contents of a memory object are read from. Beside SECTION_OBJECTS, record by record.
struct object_source {
    uint64_t device, inode;
    int fd; // -1: from the mappings of it
};

struct freezing {
    const struct freeze_request *request;
    struct freeze_report *report;
    uint64_t scratch, scratch_bytes;
    uint64_t parcel;
    int image_fd, pagemap_fd, memory_fd, pid;
    int writer_tid;
    struct table mappings, ranges, pipes, sources, text;
    struct table ring_mappings; // struct mapping, of io_urings
    uint32_t ring_mappings_taken;
    struct table inodes; // of SECTION_DESCRIPTORS, record by record
    struct table sections[SECTION_COUNT];
    struct process_facts process;
    struct image_header header;
    struct landing landing_before;
    int noted;  // the landing tells the processor time of this freeze
    int hooked; // the hooks were put in by this freeze
};

extern struct landing thawd_landing;

// Says why the freeze ends: `result` is FREEZE_REFUSED or FREEZE_FAILED, which it returns; `text` and `detail` are
// joined.
int freeze_ends(struct freezing *f, int result, const char *stage, int error, const char *text, const char *detail);

static inline int refuse(struct freezing *f, const char *stage, const char *text, const char *detail) {
    return freeze_ends(f, FREEZE_REFUSED, stage, 0, text, detail);
}
static inline int fail(struct freezing *f, const char *stage, long error, const char *text) {
    return freeze_ends(f, FREEZE_FAILED, stage, (int)-error, text, "");
}

// Whether the test at hand wants the freeze to fail here; fills in the report.
int fault_point(struct freezing *f, const char *name);

// A text in SECTION_STRINGS; its offset, NO_INDEX when the table is full.
uint32_t add_string(struct freezing *f, const char *text);

// A file in SECTION_FILES; its index, NO_INDEX when it is not there under `path`. `checked`: see struct file_identity.
uint32_t add_file(struct freezing *f, uint32_t path, int checked);

// park.c: the other threads. park_all: they stand still at a known point; 0 or a freeze_result. park_release: they go
// on; whether the scratch memory may be given back, which it may not while a signalled thread has not come.
int park_all(struct freezing *f);
int park_release(struct freezing *f);
// What signal 33 did before.
void park_replaced_action(struct signal_action *action);
// Makes the calling thread write the image from within a signal handler, by `write(f)`; 0 or a freeze_result. In a copy
// it returns with `thawd_landing.restored` set.
int park_self(struct freezing *f, int (*write)(struct freezing *f));
// The thread states noted so far become SECTION_THREADS, the leader's first. 0 or a freeze_result.
int park_describe(struct freezing *f);
// Writes id and name of a parked thread that waits for `fd` (accept, select, poll, epoll_wait); 0: none does.
int park_who_waits(struct freezing *f, int fd, char *to, uint64_t bytes);
// Whether a parked thread stands at an address in [start, end).
int park_is_inside(uint64_t start, uint64_t end);

// mappings.c: reads /proc/self/smaps into `mappings`.
int mappings_read(struct freezing *f);

// rings.c: notes a mapping of an io_uring, which is left out; 0 or a freeze_result.
int ring_note_mapping(struct freezing *f, const struct mapping *mapping);

// pages.c: finds the pages that differ from their backing.
int pages_find(struct freezing *f);

// descriptors.c: SECTION_DESCRIPTORS and SECTION_EPOLL.
int descriptors_describe(struct freezing *f);
// The memory object for the deleted file with this device and inode; NO_INDEX when there are too many.
uint32_t object_of(struct freezing *f, uint64_t device, uint64_t inode, const char *name);

// process.c: what is neither memory nor threads nor descriptors, and what of it refuses.
int process_describe(struct freezing *f);

// rights.c: what the process may do, and what of it refuses.
int rights_describe(struct freezing *f);

// plan.c: from mappings and pages to SECTION_OPERATIONS, and the places of all data.
int plan(struct freezing *f);

// output.c: writes the header, the sections and the data.
int output(struct freezing *f);

// clocks.c: processor time goes on in a copy. clocks_find: with the C library. clocks_note: into the landing, until
// clocks_forget.
void clocks_find(void);
uint64_t clocks_of_this_thread(void);
void clocks_note(struct freezing *f);
void clocks_forget(struct freezing *f);
struct timespec;
struct rusage;
struct tms;
int hooked_clock_gettime(int32_t clock, struct timespec *time);
int hooked_getrusage(int who, struct rusage *usage);
long hooked_times(struct tms *used);

// hooks.c: madvise and mremap of the C library, patched so that they know image-backed memory; and the functions of
// clocks.c.
// Finds the functions, with the C library; then patches and restores them, without.
int hooks_find(struct freezing *f);
int hooks_install(struct freezing *f);
void hooks_remove(struct freezing *f);

#endif
