// Runs inside the server under test, by LD_PRELOAD: a disk that fails, fills up and loses what was not synced.
//
// FAULTY_DISK_FOLDER is the folder whose files lie on that disk; FAULTY_DISK_CONTROL a file that is mapped as `struct
// control`, through which a test throws the switches while the server runs; FAULTY_DISK_UNDO a folder on the same file
// system that takes the undo log. The page cache outlives kill -9, so a kill alone says nothing about fsync: here what
// each change overwrites is noted before it is made, and `disk.py` takes back a part of what was not synced.
//
// Only calls that go through the C library are seen, and no stores to mapped files: SQLite maps its -shm file alone,
// which a power cut leaves behind as rubbish anyway.

#define _GNU_SOURCE
#include "faulty_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct control *control;
static char folder[PATH_MAX];
static size_t folder_bytes;
static char undo[PATH_MAX];
static int log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void hold(void) {
    pthread_mutex_lock(&lock);
}

void release(void) {
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void) {
    const char *given_folder = getenv("FAULTY_DISK_FOLDER"), *given_control = getenv("FAULTY_DISK_CONTROL"),
               *given_undo = getenv("FAULTY_DISK_UNDO");
    if (control != NULL || given_folder == NULL || given_control == NULL || given_undo == NULL)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, given_control, O_RDWR | O_CLOEXEC, 0);
    void *map = (void *)syscall(SYS_mmap, NULL, sizeof *control, 3, 1, fd, 0);
    char path[PATH_MAX];
    if (fd < 0 || (intptr_t)map < 0 || realpath(given_folder, folder) == NULL ||
        snprintf(path, sizeof path, "%s/log", given_undo) >= (int)sizeof path)
        abort();
    snprintf(undo, sizeof undo, "%s", given_undo);
    folder_bytes = strlen(folder);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log_fd < 0)
        abort();
    // Away from the numbers that programs pass on to their children.
    int high = fcntl(log_fd, F_DUPFD_CLOEXEC, 500);
    syscall(SYS_close, log_fd);
    syscall(SYS_close, fd);
    log_fd = high;
    pthread_atfork(hold, release, release);
    // The server alone: what it starts has a disk that works.
    unsetenv("LD_PRELOAD");
    control = map;
}

bool has_disk(void) {
    // A process that was forked from one without a disk may have been given the variables since.
    if (control == NULL)
        begin();
    return control != NULL;
}

bool chance(int64_t ppm) {
    if (ppm <= 0)
        return false;
    uint64_t drawn = (uint64_t)atomic_fetch_add(&control->random, (int64_t)0x9e3779b97f4a7c15ULL);
    drawn = (drawn ^ (drawn >> 30)) * 0xbf58476d1ce4e5b9ULL;
    drawn = (drawn ^ (drawn >> 27)) * 0x94d049bb133111ebULL;
    return (int64_t)((drawn ^ (drawn >> 31)) % PPM) < ppm;
}

bool is_turn(_Atomic int64_t *counter) {
    int64_t left = atomic_load(counter);
    while (left > 0)
        if (atomic_compare_exchange_weak(counter, &left, left - 1))
            return left == 1;
    return false;
}

bool is_inside(const char *path) {
    return strncmp(path, folder, folder_bytes) == 0 && (path[folder_bytes] == '/' || path[folder_bytes] == '\0');
}

bool is_ours(int fd, mode_t type, struct stat *found, char *path) {
    if (!has_disk() || fstat(fd, found) != 0 || (found->st_mode & S_IFMT) != type)
        return false;
    char link[64], own[PATH_MAX];
    char *into = path != NULL ? path : own;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, into, PATH_MAX - 1);
    if (bytes < 0)
        return false;
    into[bytes] = '\0';
    return is_inside(into);
}

bool resolve(int at, const char *path, char *into) {
    if (!has_disk() || path == NULL || *path == '\0')
        return false;
    char whole[2 * PATH_MAX], parent[PATH_MAX], link[64];
    if (*path == '/' || at == AT_FDCWD) {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t bytes = readlink(link, parent, sizeof parent - 1);
        if (bytes < 0)
            return false;
        parent[bytes] = '\0';
        snprintf(whole, sizeof whole, "%s/%s", parent, path);
    }
    size_t bytes = strlen(whole);
    while (bytes > 1 && whole[bytes - 1] == '/')
        whole[--bytes] = '\0';
    char *slash = strrchr(whole, '/');
    const char *name = slash != NULL ? slash + 1 : whole;
    char above[2 * PATH_MAX];
    snprintf(above, sizeof above, "%.*s", slash != NULL ? (int)(slash - whole) + 1 : 1, slash != NULL ? whole : ".");
    if (realpath(above, parent) == NULL || snprintf(into, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX)
        return false;
    return is_inside(into);
}

void note(struct record *record, const char *path, const char *other, const void *data) {
    record->magic = MAGIC;
    record->path_bytes = path != NULL ? (uint32_t)strlen(path) : 0;
    record->other_bytes = other != NULL ? (uint32_t)strlen(other) : 0;
    struct iovec parts[] = {{record, sizeof *record},
                            {(void *)path, record->path_bytes},
                            {(void *)other, record->other_bytes},
                            {(void *)data, (size_t)record->data_bytes}};
    if (syscall(SYS_writev, log_fd, parts, 4) < 0)
        abort();
}

int64_t next_sequence(void) {
    return atomic_fetch_add(&control->sequence, 1) + 1;
}

void note_content(enum kind kind, int fd, const struct stat *file, int64_t offset, int64_t length) {
    int64_t within = file->st_size - offset;
    within = within < 0 ? 0 : within < length ? within : length;
    char *old = NULL;
    if (within > 0) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int reading = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
        old = malloc((size_t)within);
        int64_t got = 0;
        while (reading >= 0 && old != NULL && got < within) {
            ssize_t bytes = pread(reading, old + got, (size_t)(within - got), offset + got);
            if (bytes <= 0)
                break;
            got += bytes;
        }
        if (got < within)
            abort();
        syscall(SYS_close, reading);
    }
    struct record record = {.kind = kind,
                            .sequence = next_sequence(),
                            .inode = file->st_ino,
                            .offset = offset,
                            .length = length,
                            .old_size = file->st_size,
                            .data_bytes = within};
    note(&record, NULL, NULL, old);
    free(old);
}

bool is_full(void) {
    if (!has_disk() || atomic_load(&control->free_bytes) != 0)
        return false;
    atomic_fetch_add(&control->refused, 1);
    return true;
}

void give_back(int64_t bytes) {
    if (bytes > 0 && atomic_load(&control->free_bytes) != UNLIMITED)
        atomic_fetch_add(&control->free_bytes, bytes);
}

int64_t take_room(int64_t length, int64_t growth) {
    int64_t left = atomic_load(&control->free_bytes);
    if (left == UNLIMITED || growth <= 0)
        return length;
    int64_t missing = growth > left ? growth - left : 0;
    if (missing >= length)
        return 0;
    atomic_fetch_sub(&control->free_bytes, growth - missing);
    return length - missing;
}

void keep(const char *path, int64_t sequence) {
    char kept[PATH_MAX + 32];
    snprintf(kept, sizeof kept, "%s/%lld", undo, (long long)sequence);
    syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, kept, 0);
}

void note_entry(enum kind kind, const char *path, const char *other, uint64_t inode, int64_t sequence) {
    struct record record = {.kind = kind, .sequence = sequence, .inode = inode};
    note(&record, path, other, NULL);
}
