// Runs in thaw's address space. Declarations that the stages of thaw share.
//
// thaw is a static program without a C library, linked at ZONE_START: the first address of the zone, which the frozen
// process does not use. After the stage `clear` only the zone is mapped, with thaw's code, data and own stack: the
// first stack, which the kernel made with the arguments on it, is gone, and there is no heap. Thaw calls no library,
// only the kernel.
//
// The landing is a struct in the frozen memory through which thaw passes data to the copy; the parcel is an area for
// data that is too long for it (thaw_landing.h).

#ifndef THAWD_THAW_H
#define THAWD_THAW_H

#include <stdint.h>

#include "disk.h"
#include "image.h"
#include "sys.h"
#include "text.h"

#define EXIT_REFUSED 120 // this image cannot be thawed here: trying again would not help
#define EXIT_STAGE 121   // a stage failed

// Addresses in the zone, after thaw's own code and data, at which thaw keeps data while it works.
#define ZONE_TABLES (ZONE_START + UINT64_C(0x10000000)) // the image's tables
#define ZONE_PARKED (ZONE_START + UINT64_C(0x08000000)) // the vDSO, until it is moved to its final address

#define MAX_PROVIDED 1024
#define WORDS_BYTES (256 << 10)

// The parts of the vDSO of this process, as the kernel laid them out.
struct vdso_parts {
    uint64_t vvar_start, vvar_bytes, code_start, code_bytes;
};

struct provided {
    int32_t number; // number in the frozen process
    int32_t from;   // the caller's number; while descriptors are replaced, the number under which it is kept
};

struct thaw {
    // From the command line.
    char path[4096];
    char die_at[32];      // a stage, or empty
    char end_at[32];      // a stage, or empty
    int by_text;          // do not use PROCMAP_QUERY
    int vdso_jump;        // leave the vDSO in place: it is sealed, differs from the frozen one, or --vdso-jump
    char vdso_file[4096]; // for tests: a library to use in place of the kernel's vDSO, or "none"; empty: neither
    int clocks_back;      // thaw even if the copy's clocks go back (--clocks-back)
    int again;            // number of earlier attempts (see exec_again)
    struct disk disk;     // its texts are on the first stack, which `clear` unmaps
    enum { RIGHTS_FROZEN, RIGHTS_NAMESPACE, RIGHTS_NONE } rights; // further limits on the copy's rights
    int status_fd;      // gets the error number, four bytes, if the program cannot be executed; 0: not requested
    int run;            // execute a program instead of thawing an image, after the disk was mounted
    char disk_tmp[64];  // copy of `disk.tmp`; empty: the folder has one path only
    char disk_at[4096]; // copy of `disk.at`; empty: the copy has no temporary folder of its own
    uint32_t provided_count;
    struct provided provided[MAX_PROVIDED];
    // The arguments and environment variables for the copy: `words` holds all texts, one after the other.
    uint32_t argument_count, variable_count;
    uint64_t words_bytes;
    char words[WORDS_BYTES];
    char **argv, **envp; // on the first stack, which `clear` unmaps
    // While thawing.
    const char *stage;
    uint64_t started_ns;
    int image_fd; // 0: the image is not open yet
    int spare_fd; // thaw's own descriptors have numbers from this one on, above those that the copy gets
    const struct image_header *header;
    uint64_t tables_bytes;
    struct vdso_parts vdso;
    uint64_t image_device, image_inode; // as /proc/self/maps shows them
    int other_boot;                     // 1: the machine was restarted since the freeze, or is another one
    uint64_t ranges_at, range_count;    // address in the parcel and number of the ranges that are mapped from the image
    int32_t *new_tids; // in the parcel: pairs of old and new thread id; NULL if there is no space for them
};

extern struct thaw thaw_state;

#define SECTION(t, type, section) ((const type *)((const char *)(t)->header + (t)->header->sections[section].offset))
#define COUNT(t, section) ((t)->header->sections[section].count)

static inline const char *string_at(const struct thaw *t, uint32_t offset) {
    return SECTION(t, char, SECTION_STRINGS) + offset;
}

// Both end the process with a line on standard error. thaw_refuse is for an image that cannot be thawed here, whatever
// the stage (EXIT_REFUSED), thaw_fail for a stage that failed (EXIT_STAGE).
_Noreturn void thaw_refuse(const char *why, const char *detail);
_Noreturn void thaw_fail(const char *what, const char *detail, long error);

// The stages, in order. The table in thaw.c says what is true after each.
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

// Opens the image. The stage `open` checks it.
void open_image(struct thaw *t);
// thaw_clocks.c: lets the clocks that count from the machine's start go on from the freeze. Enters a time namespace if
// they are behind their values at the freeze; ends this process if it cannot.
void clocks_go_on(struct thaw *t);
// thaw_vdso.c: finds this process's vDSO. Puts code at the frozen vDSO's addresses that jumps to this process's vDSO.
void vdso_find(struct thaw *t);
void vdso_redirect(struct thaw *t);
// Ends this process if it was started under fewer seccomp filters than the frozen process.
void rights_check(struct thaw *t);
// Restores the groups of the frozen process, or refuses the image.
void rights_become_groups(struct thaw *t);
// Sets the frozen process's resource limits, and whether other processes may inspect the copy. Called last, since both
// could forbid what earlier steps do.
void rights_limit(const struct process_facts *process);
// The lowest address of the vDSO and its data.
uint64_t vdso_start(const struct vdso_parts *vdso);
// The descriptor of memory object `index`; the first call makes the object.
int object_descriptor(struct thaw *t, uint32_t index);
// Moves `fd` to a number that the frozen process does not use; returns the number.
int keep_aside(struct thaw *t, int fd);
// Duplicates `fd` to the descriptor's number.
void put_in_place(const struct descriptor *descriptor, int fd);
// Writes the descriptor's unread data into the other end, so that it can be read again.
void fill_channel(struct thaw *t, const struct descriptor *descriptor, int write_end);
_Noreturn void fail_descriptor(const struct descriptor *descriptor, const char *what, long error);
// thaw_sockets.c: make_socket makes the descriptor's socket. make_pair makes both ends of a socket pair, and puts both
// in place.
int make_socket(struct thaw *t, const struct descriptor *descriptor);
void make_pair(struct thaw *t, const struct descriptor *first);
// thaw_rings.c: makes the descriptor's io_uring and maps it at its old address.
int make_ring(struct thaw *t, const struct descriptor *descriptor);
// Whether a file is in this copy's own temporary folder.
int is_own_file(const struct thaw *t, const char *path);
// If the copy's temporary folder is an overlay, makes it copy the files to which this process will write. Called before
// any file is mapped or opened.
void make_files_own(struct thaw *t);
// Ends this process if the file `index` on the disk is not the file that the image describes.
void file_must_match(struct thaw *t, uint32_t index, int fd);

#endif
