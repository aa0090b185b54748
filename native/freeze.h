// Runs in the process that is frozen. The interface of libthawd_freeze.so; the only header a caller needs.

#ifndef THAWD_FREEZE_H
#define THAWD_FREEZE_H

#include <stdint.h>

enum freeze_flag {
    // Thaw reads page data from the image instead of mapping it. Needed for code that calls madvise or mremap without
    // the C library: for such calls, mapped data does not behave like anonymous memory (see libc_patches.c).
    FREEZE_COPY = 1,
    // For tests: do not use PAGEMAP_SCAN, as on kernels before 6.7.
    FREEZE_NO_PAGEMAP_SCAN = 2,
    // For tests: do not use PROCMAP_QUERY, as on kernels before 6.11; also in the thawed copies.
    FREEZE_NO_PROCMAP_QUERY = 4,
    // Refuse the freeze if the process has a connection that no copy can have. Without this flag, such a connection has
    // ended in each copy.
    FREEZE_REFUSE_CONNECTED = 8,
    // A listening socket that is not in `any_port` listens in a copy, but nothing can connect to it. Without this flag,
    // such a socket is refused.
    FREEZE_MUTE_LISTENERS = 16,
    // In a copy, the thread that called thawd_freeze continues alone. The others wait until it calls
    // thawd_release_threads, but at most five seconds, because one of them may hold a lock that the first needs.
    FREEZE_HOLD_THREADS = 32,
    // If a copy is frozen again, store all of its pages, so that the image does not refer to the earlier one. Without
    // this flag, only what the copy has changed is stored, and every copy of that image changes the earlier image's
    // pages again, so that each needs pages of its own for that.
    FREEZE_COMPLETE = 64,
};

enum freeze_result {
    FREEZE_FROZEN = 0,   // this is the original; the image is complete and durable
    FREEZE_THAWED = 1,   // this is a thawed copy
    FREEZE_REFUSED = -1, // a copy would not be faithful: see `text`; the process continues unchanged
    FREEZE_FAILED = -2,  // a system call failed: see `text`; the process continues unchanged
};

struct freeze_request {
    uint32_t bytes;          // sizeof(struct freeze_request)
    uint32_t flags;          // enum freeze_flag
    const char *path;        // path of the image; written beside it as PATH.partial, then renamed
    const int32_t *provided; // descriptors that each copy gets from the process that starts thaw, besides 0, 1 and 2
    uint32_t provided_count;
    uint32_t park_timeout_ms; // how long to wait until all other threads have stopped; 0: 2000
    const char *fail_at;      // for tests: the step at which to fail ("?" lists them); otherwise NULL
    const char *disk;         // NULL, or a folder of which each copy gets its own version (thawd-thaw --disk-at)
    const int32_t *any_port;  // descriptors of sockets whose port the kernel chose, and chooses again for each copy
    uint32_t any_port_count;
    int32_t seccomp_filters; // number of filters that the process was started under; -1: as many as its parent has
};

struct freeze_report {
    uint32_t bytes; // sizeof(struct freeze_report)
    int32_t error;  // errno of the call that failed; 0 for a refusal
    char stage[32]; // stage that failed: "park", "mappings", "descriptors", …
    char text[512]; // the reason, and what to do
    // In the original:
    uint64_t image_bytes; // size of the file, holes included
    uint64_t data_bytes;  // page data in the file
    uint32_t operations;
    uint32_t threads;
    uint32_t descriptors;
    uint32_t ended;    // number of connections that have ended in a copy
    uint64_t park_ns;  // until all other threads had stopped; they stayed so during scan_ns and write_ns
    uint64_t scan_ns;  // finding out what must be stored
    uint64_t write_ns; // writing the image
    uint64_t sync_ns;  // syncing it to the disk and renaming it
    // In a thawed copy:
    uint64_t restore_ns;            // from the entry of thaw to the return of freeze
    const char *const *arguments;   // NULL-terminated: the arguments after PATH on thaw's command line
    const char *const *environment; // NULL-terminated: thaw's environment variables
};

// Writes this process to an image, and returns an `enum freeze_result` once in the original and once in each thawed
// copy. It can be called from any thread; all other threads are stopped meanwhile. In a copy every thread continues
// where it was stopped. A copy has another process id and other thread ids, and its descriptors in `provided` come from
// the process that started thaw.
__attribute__((visibility("default"))) int thawd_freeze(const struct freeze_request *request,
                                                        struct freeze_report *report);

// Mounts the folder `own`, which only this process uses, at the path `at`, as `thawd-thaw --environment --disk-at AT
// --disk-own OWN --disk-lower LOWER --disk-tmp TMP` does for a copy (see struct disk in disk.h); `lower` and `tmp` may
// be NULL. Call it in a process with a single thread that was forked from a copy, or from a process that can be frozen.
// Returns FREEZE_FROZEN on success; on FREEZE_REFUSED or FREEZE_FAILED this process must end.
__attribute__((visibility("default"))) int thawd_disk(const char *at, const char *own, const char *lower,
                                                      const char *tmp, struct freeze_report *report);

// Drops all capabilities of this process permanently; it must have a single thread. Returns 0, or -errno.
__attribute__((visibility("default"))) int thawd_drop_capabilities(void);

// Waits until all other threads sleep, at most `limit_ns`. Threads that compute all the time do not count. Returns 1 if
// they do, and 0 if the time was not enough or the threads cannot be listed.
__attribute__((visibility("default"))) int thawd_others_sleep(int64_t limit_ns);

// In a thawed copy of an image that was made with FREEZE_HOLD_THREADS, lets all threads continue. Returns 1 if all have
// waited until now, and 0 if a thread has already continued, because it has waited for five seconds.
__attribute__((visibility("default"))) int thawd_release_threads(void);

// In a thawed copy with a single thread, gives back the copy's own pages whose contents are equal to the image's, so
// that the copy shares these pages with others again, until it writes to them. The copy notices nothing. Returns how
// many pages were given back: 0 if this process is not a copy or has several threads, if a seccomp filter is installed,
// if the kernel could be writing to its memory for asynchronous I/O (io_uring, io_submit), or before Linux 6.7.
__attribute__((visibility("default"))) int64_t thawd_share_equal_pages(void);

// In a thawed copy, the current id of the thread whose id was `tid` at the freeze. 0 if there is no such thread, or if
// this process is not a copy.
__attribute__((visibility("default"))) int32_t thawd_new_tid(int32_t tid);

#endif
