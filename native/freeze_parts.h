// Runs in the process that is frozen. Declarations that the files of freeze share: the state of one freeze, its tables.
//
// Once the other threads are stopped, no code of freeze may call the C library: a stopped ("parked") thread may hold
// any of the library's locks. Working memory ("scratch") is one anonymous mapping of freeze's own, which is left out of
// the image. It is a shared mapping, so that the kernel does not merge it with a neighbouring one that must be stored.
//
// The landing is the struct `thawd_landing`, through which thaw passes data to a copy (thaw_landing.h).

#ifndef THAWD_FREEZING_H
#define THAWD_FREEZING_H

#include <stdint.h>

#include "freeze.h"
#include "image.h"
#include "text.h"
#include "thaw_landing.h"

// An array of records in scratch memory, to which records are added until its capacity is used up.
struct table {
    unsigned char *base;
    uint32_t count;
    uint32_t record_bytes;
    uint64_t capacity_bytes;
};

#define AT(table, type, index) (&((type *)(table).base)[index])

// Adds a zeroed record to the table; NULL when the table is full.
void *table_add(struct table *table);

// One line of /proc/self/maps.
struct mapping {
    uint64_t start, end, offset, inode;
    uint64_t device; // major << 32 | minor
    uint32_t protection;
    uint32_t shared;
    uint32_t writable_once; // mprotect may make it writable (VM_MAYWRITE)
    uint32_t no_reserve;
    uint32_t stack;         // this is the main thread's stack
    uint32_t advice;        // enum advice
    uint32_t path;          // offset in SECTION_STRINGS; NO_INDEX: none
    uint32_t object;        // index in SECTION_OBJECTS, once `plan` has run; NO_INDEX: none
    uint32_t deleted;       // the file has no path any more
    uint32_t complete;      // a mapping of an earlier image of which all pages are stored: FREEZE_COMPLETE
    uint32_t refused_flags; // 1: memory of huge pages or of a device, which cannot be frozen
};

// Pages that must be stored.
struct range {
    uint64_t start, end;
    uint32_t mapping;  // index in `mappings`
    uint32_t of_file;  // 1: the pages differ from those of a file; 0: from zeros
    uint32_t of_image; // 1: the mapping is of an image from which this process was thawed
};

// The contents of a pipe, or of one end of a pair of sockets.
struct pipe_contents {
    const void *from;
    uint64_t bytes;      // 0: nothing is stored
    uint32_t descriptor; // index in SECTION_DESCRIPTORS
};

struct inode {
    uint64_t device, number;
};

// The source of a memory object's contents. Record N belongs to record N of SECTION_OBJECTS.
struct object_source {
    uint64_t device, inode;
    int fd; // -1: read from the object's mappings
};

struct freezing {
    const struct freeze_request *request;
    struct freeze_report *report;
    uint64_t scratch, scratch_bytes;
    uint64_t parcel;
    uint64_t vdso_start, vdso_end; // the code of the vDSO that this process uses, until mappings_read
    int image_fd, pagemap_fd, memory_fd, pid;
    int writer_tid; // the thread that called thawd_freeze
    struct table mappings, ranges, pipes, sources;
    struct table text;            // bytes: a buffer for whatever is being read or compared
    struct table ring_mappings;   // struct mapping, of io_urings
    uint32_t ring_mappings_taken; // how many of them belong to a descriptor
    struct table inodes;          // record N belongs to record N of SECTION_DESCRIPTORS
    struct table sections[SECTION_COUNT];
    struct process_facts process;
    struct image_header header;
    struct landing landing_before; // the landing before clocks_note changed it
    int noted;                     // 1: clocks_note has added the processor time until this freeze to the landing
    int inside_vdso;               // 1: a thread was stopped inside the vDSO
    int is_patched;                // 1: this freeze has patched the C library (libc_patches.c)
};

extern struct landing thawd_landing;

// Fills in the report with the reason why the freeze ends: `text` and then `detail`. Returns `result`, which is
// FREEZE_REFUSED or FREEZE_FAILED.
int freeze_ends(struct freezing *f, int result, const char *stage, int error, const char *text, const char *detail);

static inline int refuse(struct freezing *f, const char *stage, const char *text, const char *detail) {
    return freeze_ends(f, FREEZE_REFUSED, stage, 0, text, detail);
}
static inline int fail(struct freezing *f, const char *stage, long error, const char *text) {
    return freeze_ends(f, FREEZE_FAILED, stage, (int)-error, text, "");
}

// Returns FREEZE_FAILED and fills in the report if a test has requested a failure at this point; otherwise returns 0.
int fault_point(struct freezing *f, const char *name);

// Adds a text to SECTION_STRINGS; returns its offset, or NO_INDEX when the table is full.
uint32_t add_string(struct freezing *f, const char *text);

// Adds a file to SECTION_FILES; returns its index, or NO_INDEX when no file has this path or the table is full.
// `checked`: see struct file_identity.
uint32_t add_file(struct freezing *f, uint32_t path, int checked);

// park_threads.c: park_all stops the other threads in a signal handler; returns 0 or a freeze_result. park_release lets
// them continue; returns whether the scratch memory may be freed. That memory must stay as long as a thread has been
// signalled but has not reached the handler, which writes there.
int park_all(struct freezing *f);
int park_release(struct freezing *f);
// If park_all has replaced the action of this signal (33 and SIGTRAP), writes the action of before to `action`.
void park_replaced_action(int signal, struct signal_action *action);
// Sends a signal to the calling thread. The signal's handler calls `write(f)` to write the image. Returns 0 or a
// freeze_result. In a copy it returns, too, with `thawd_landing.restored` set.
int park_self(struct freezing *f, int (*write)(struct freezing *f));
// Copies the states of the parked threads to SECTION_THREADS, the main thread's first. Returns 0 or a freeze_result.
int park_describe(struct freezing *f);
// Writes the id and name of a parked thread that waits for `fd` (in accept, select, poll or epoll_wait) to `to`;
// returns 0 if no thread does.
int park_who_waits(struct freezing *f, int fd, char *to, uint64_t bytes);
// Whether a parked thread was stopped at an address in [start, end).
int park_is_inside(uint64_t start, uint64_t end);
// Whether a signal handler of the program, in which a thread was stopped, has interrupted code in [start, end).
int park_has_interrupted(struct freezing *f, uint64_t start, uint64_t end);

// freeze_mappings.c: vdso_note finds the vDSO with the help of the C library. mappings_read reads /proc/self/smaps into
// `mappings`.
void vdso_note(struct freezing *f);
int mappings_read(struct freezing *f);

// freeze_rings.c: records a mapping of an io_uring, which is left out of the image. Returns 0 or a freeze_result.
int ring_note_mapping(struct freezing *f, const struct mapping *mapping);

// freeze_find_pages.c: finds the pages that must be stored. image_of returns the image that this mapping maps; NULL if
// it maps none. Only a copy that is frozen again has such mappings.
int pages_find(struct freezing *f);
const struct landed_image *image_of(const struct mapping *mapping);

// freeze_descriptors.c: fills SECTION_DESCRIPTORS and SECTION_EPOLL.
int descriptors_describe(struct freezing *f);
// The memory object for the deleted file with this device and inode; NO_INDEX when there are too many.
uint32_t object_of(struct freezing *f, uint64_t device, uint64_t inode, const char *name);

// freeze_process.c: describes state other than memory, threads and descriptors; refuses what cannot be restored.
int process_describe(struct freezing *f);

// freeze_rights.c: describes the rights of the process; refuses those that cannot be restored.
int rights_describe(struct freezing *f);

// freeze_plan.c: makes SECTION_OPERATIONS from mappings and pages, and assigns offsets to all data.
int plan(struct freezing *f);

// freeze_write_image.c: writes the header, the sections and the data.
int output(struct freezing *f);

// clocks.c: lets processor time continue in a copy. clocks_find finds the vDSO's clock with the help of the C library.
// clocks_of_this_thread returns the thread's processor time, nanoseconds, including the time before a thaw. clocks_note
// adds this process's processor time to the landing, for the image; clocks_forget takes it away again in the original.
void clocks_find(void);
uint64_t clocks_of_this_thread(void);
void clocks_note(struct freezing *f);
void clocks_forget(struct freezing *f);
struct timespec;
struct rusage;
struct tms;
int patched_clock_gettime(int32_t clock, struct timespec *time);
int patched_getrusage(int who, struct rusage *usage);
long patched_times(struct tms *used);

// libc_patches.c: patches madvise and mremap of the C library, so that they handle memory that a copy maps from its
// image, and the functions that clocks.c replaces. patches_find finds all of them with the help of the C library;
// patches_install and patches_remove work without it.
int patches_find(struct freezing *f);
int patches_install(struct freezing *f);
void patches_remove(struct freezing *f);

#endif
