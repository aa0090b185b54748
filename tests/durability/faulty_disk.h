// Runs inside the server under test. faulty_disk.c has the disk itself: its switches, its undo log, the room on it;
// faulty_disk_calls.c has the calls of the C library that it takes over.

#ifndef FAULTY_DISK_H
#define FAULTY_DISK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { UNLIMITED = -1, PPM = 1000000, MAGIC = 0x4b534944 };

// Read and written by disk.py, which knows the order of the fields.
struct control {
    _Atomic int64_t sequence;        // of changes
    _Atomic int64_t fail_sync;       // the nth sync from now fails; 0: none
    _Atomic int64_t sync_failures;   // so many of a million syncs of files fail
    _Atomic int64_t short_writes;    // so many of a million writes are cut short
    _Atomic int64_t refuse_writes;   // so many writes from now find no space
    _Atomic int64_t free_bytes;      // UNLIMITED, or what is left
    _Atomic int64_t clock_offset_ns; // added to the clock of the day
    _Atomic int64_t die_before_sync; // the nth sync from now kills the process; 0: none
    _Atomic int64_t die_after_sync;  // likewise, once it is done
    _Atomic int64_t random;          // state of the generator
    _Atomic int64_t syncs;           // done
    _Atomic int64_t failed_syncs;
    _Atomic int64_t refused; // for want of space
    _Atomic int64_t shortened;
};

enum kind { WRITE = 1, TRUNCATE, SYNC, SYNC_FAILED, SYNC_FOLDER, CREATE, RENAME, UNLINK, MAKE_FOLDER, REMOVE_FOLDER };

// Before each record in the log: what follows are the paths and the bytes that the change overwrites.
struct record {
    uint32_t magic;
    uint32_t kind;
    int64_t sequence; // of the change; of a sync: of the last change that it covers
    uint64_t inode;
    int64_t offset;
    int64_t length;
    int64_t old_size;
    uint32_t path_bytes;
    uint32_t other_bytes;
    int64_t data_bytes;
};

// NULL where the process has no such disk.
extern struct control *control;

// Whether the process has such a disk.
bool has_disk(void);

// One at a time: what changes the disk, and the log of it.
void hold(void);
void release(void);

// Whether a fault of this chance, so many of a million, happens now.
bool chance(int64_t ppm);

// Counts a switch down; whether this is the time that it was set for.
bool is_turn(_Atomic int64_t *counter);

bool is_inside(const char *path);

// Whether the descriptor is a file or folder on the disk; fills `found` and, when asked for, `path`.
bool is_ours(int fd, mode_t type, struct stat *found, char *path);

// The path without links in its folder; whether it lies on the disk.
bool resolve(int at, const char *path, char *into);

int64_t next_sequence(void);

// Appends a record. One write: a process that is killed leaves at most the last one in pieces.
void note(struct record *record, const char *path, const char *other, const void *data);

// Notes what [offset, offset + length) of the file holds now.
void note_content(enum kind kind, int fd, const struct stat *file, int64_t offset, int64_t length);

void note_entry(enum kind kind, const char *path, const char *other, uint64_t inode, int64_t sequence);

// Keeps a second name for a file that is about to lose its own, so that a power cut can bring it back.
void keep(const char *path, int64_t sequence);

// Whether there is no room for one more name; if so, it counts as refused.
bool is_full(void);

void give_back(int64_t bytes);

// How many of `length` bytes there is room for, taking the room; 0: none.
int64_t take_room(int64_t length, int64_t growth);

#endif
