// Runs in thaw's address space. What the stages of thaw share.
//
// thaw is a static program without a C library, linked at ZONE_START, which the frozen process does not use. Nothing
// but the zone survives its middle stages: no stack but its own, no vDSO, no heap. It makes system calls and nothing
// else.

#ifndef THAWD_THAW_H
#define THAWD_THAW_H

#include <stdint.h>

#include "disk.h"
#include "image.h"
#include "sys.h"
#include "text.h"

#define EXIT_REFUSED 120 // this image cannot be thawed here; nothing was tried
#define EXIT_STAGE 121   // a stage failed

// Where things stand aside in the zone, behind thaw's own code and data.
#define ZONE_TABLES (ZONE_START + UINT64_C(0x10000000)) // the image's tables
#define ZONE_PARKED (ZONE_START + UINT64_C(0x08000000)) // the vDSO, on its way
#define ZONE_BUFFER (ZONE_START + UINT64_C(0x0a000000)) // contents of memory objects, on their way

#define MAX_PROVIDED 1024
#define WORDS_BYTES (256 << 10)

// The parts of the vDSO of this process, as the kernel laid them out.
struct vdso_parts {
    uint64_t vvar_start, vvar_bytes, code_start, code_bytes;
};

struct provided {
    int32_t number; // as the frozen process knows it
    int32_t from;   // as the caller passed it; while descriptors are replaced, where it is kept
};

struct thaw {
    // From the command line.
    char path[4096];
    char die_at[32];                                              // a stage, or empty
    char end_at[32];                                              // the same
    int by_text;                                                  // no PROCMAP_QUERY
    int vdso_jump;                                                // as where the kernel seals the vDSO
    int again;                                                    // how often this is tried already with another layout
    struct disk disk;                                             // its texts lie on the first stack
    enum { RIGHTS_FROZEN, RIGHTS_NAMESPACE, RIGHTS_NONE } rights; // what the copy may do, beside what was frozen
    int status_fd;      // gets the error, four bytes, when the program cannot be executed; 0: nobody asks
    int run;            // a program is to be executed in place of an image, once the disk is there
    char disk_tmp[64];  // `disk.tmp`, kept; empty: the folder is seen in one place only
    char disk_at[4096]; // `disk.at`, kept; empty: the copy has no temporary folder of its own
    uint32_t provided_count;
    struct provided provided[MAX_PROVIDED];
    // Arguments for the copy and environment variables, copied: `words` holds the texts, one after another.
    uint32_t argument_count, variable_count;
    uint64_t words_bytes;
    char words[WORDS_BYTES];
    char **argv, **envp; // on the first stack, gone after `clear`
    // While thawing.
    const char *stage;
    uint64_t started_ns;
    int image_fd;
    int spare_fd; // descriptors from this number on are thaw's own: above all of the frozen process's
    const struct image_header *header;
    uint64_t tables_bytes;
    struct vdso_parts vdso;
    uint64_t image_device, image_inode; // as /proc/self/maps shows them
    uint64_t ranges_at, range_count;    // in the parcel: what is mapped from the image for anonymous memory
    int32_t *new_tids; // in the copy's parcel: pairs of thread id when frozen and now; NULL when there is no room
};

extern struct thaw thaw_state;

#define SECTION(t, type, section) ((const type *)((const char *)(t)->header + (t)->header->sections[section].offset))
#define COUNT(t, section) ((t)->header->sections[section].count)

static inline const char *string_at(const struct thaw *t, uint32_t offset) {
    return SECTION(t, char, SECTION_STRINGS) + offset;
}

// Ends the process with a line on standard error. thaw_refuse: the image does not fit here; thaw_fail: a stage failed.
_Noreturn void thaw_refuse(const char *why, const char *detail);
_Noreturn void thaw_fail(const char *what, const char *detail, long error);

// The stages, in order; what holds when each has ended is told in thaw.c, where the table of them is.
void stage_disk(struct thaw *t);
void stage_open(struct thaw *t);
void stage_check(struct thaw *t);
void stage_aside(struct thaw *t);
void stage_clear(struct thaw *t);
void stage_memory(struct thaw *t);
void stage_vdso(struct thaw *t);
void stage_process(struct thaw *t);
void stage_descriptors(struct thaw *t);
void stage_landing(struct thaw *t);
void stage_rights(struct thaw *t);
void stage_threads(struct thaw *t);
_Noreturn void thaw_resume(struct thaw *t);

// Ends the process when it was started under fewer seccomp filters than the frozen one was.
void rights_check(struct thaw *t);
// The limits of the frozen process, and whether others may look into it: when nothing else is left to do.
void rights_limit(const struct process_facts *process);
// The lowest address of the vDSO and its data.
uint64_t vdso_start(const struct vdso_parts *vdso);
// The descriptor of memory object `index`, which is made when it is first asked for.
int object_descriptor(struct thaw *t, uint32_t index);
// `fd` under a number that is out of the way; `fd` itself is closed.
int keep_aside(struct thaw *t, int fd);
// `fd` becomes the descriptor's number too.
void put_in_place(const struct descriptor *descriptor, int fd);
// What the descriptor had not read is written into the other end.
void fill_channel(struct thaw *t, const struct descriptor *descriptor, int write_end);
_Noreturn void fail_descriptor(const struct descriptor *descriptor, const char *what, long error);
// thaw_sockets.c: the descriptor's socket; for a pair, both ends are put in place when the first is met.
int make_socket(struct thaw *t, const struct descriptor *descriptor);
void make_pair(struct thaw *t, const struct descriptor *first);
// thaw_rings.c: the descriptor's io_uring, mapped where it was.
int make_ring(struct thaw *t, const struct descriptor *descriptor);
// Whether a file lies in the temporary folder that this copy has for itself.
int is_own_file(const struct thaw *t, const char *path);
// Has those files there that the copy writes to be its own before any is mapped or opened.
void make_files_own(struct thaw *t);
// Whether a file on disk is the one noted in the image; ends the process when it is not.
void file_must_match(struct thaw *t, uint32_t index, int fd);

#endif
