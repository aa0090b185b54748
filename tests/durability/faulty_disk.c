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
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define ALSO_AS(name) __attribute__((visibility("default"), alias(name)))
#define REAL(name) ((__typeof__(&name))real(#name))

enum { UNLIMITED = -1, PPM = 1000000, MAGIC = 0x4b534944 };

// Read and written by disk.py, which knows the order of the fields.
struct control {
    _Atomic int64_t sequence;        // of changes
    _Atomic int64_t fail_sync;       // the so-manieth sync from now fails; 0: none
    _Atomic int64_t sync_failures;   // so many of a million syncs of files fail
    _Atomic int64_t short_writes;    // so many of a million writes are cut short
    _Atomic int64_t refuse_writes;   // so many writes from now find no space
    _Atomic int64_t free_bytes;      // UNLIMITED, or what is left
    _Atomic int64_t clock_offset_ns; // added to the clock of the day
    _Atomic int64_t die_before_sync; // the so-manieth sync from now kills the process; 0: none
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

static struct control *control;
static char folder[PATH_MAX];
static size_t folder_bytes;
static char undo[PATH_MAX];
static int log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

static void hold(void) {
    pthread_mutex_lock(&lock);
}

static void release(void) {
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void) {
    const char *given_folder = getenv("FAULTY_DISK_FOLDER"), *given_control = getenv("FAULTY_DISK_CONTROL"),
               *given_undo = getenv("FAULTY_DISK_UNDO");
    if (given_folder == NULL || given_control == NULL || given_undo == NULL)
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

static bool chance(int64_t ppm) {
    if (ppm <= 0)
        return false;
    uint64_t drawn = (uint64_t)atomic_fetch_add(&control->random, (int64_t)0x9e3779b97f4a7c15ULL);
    drawn = (drawn ^ (drawn >> 30)) * 0xbf58476d1ce4e5b9ULL;
    drawn = (drawn ^ (drawn >> 27)) * 0x94d049bb133111ebULL;
    return (int64_t)((drawn ^ (drawn >> 31)) % PPM) < ppm;
}

// Count a switch down; whether this is the time that it was set for.
static bool is_turn(_Atomic int64_t *counter) {
    int64_t left = atomic_load(counter);
    while (left > 0)
        if (atomic_compare_exchange_weak(counter, &left, left - 1))
            return left == 1;
    return false;
}

static bool is_inside(const char *path) {
    return strncmp(path, folder, folder_bytes) == 0 && (path[folder_bytes] == '/' || path[folder_bytes] == '\0');
}

// Whether the descriptor is a file or folder on the disk; fills `found` and, when asked for, `path`.
static bool is_ours(int fd, mode_t type, struct stat *found, char *path) {
    if (control == NULL || fstat(fd, found) != 0 || (found->st_mode & S_IFMT) != type)
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

// The path without links in its folder; whether it lies on the disk.
static bool resolve(int at, const char *path, char *into) {
    if (control == NULL || path == NULL || *path == '\0')
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

// Append a record. One write: a process that is killed leaves at most the last one in pieces.
static void note(struct record *record, const char *path, const char *other, const void *data) {
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

static int64_t next_sequence(void) {
    return atomic_fetch_add(&control->sequence, 1) + 1;
}

// Note what [offset, offset + length) of the file holds now.
static void note_content(enum kind kind, int fd, const struct stat *file, int64_t offset, int64_t length) {
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

static bool is_full(void) {
    if (control == NULL || atomic_load(&control->free_bytes) != 0)
        return false;
    atomic_fetch_add(&control->refused, 1);
    return true;
}

static void give_back(int64_t bytes) {
    if (bytes > 0 && atomic_load(&control->free_bytes) != UNLIMITED)
        atomic_fetch_add(&control->free_bytes, bytes);
}

// How many of `length` bytes there is room for, taking the room; 0: none.
static int64_t take_room(int64_t length, int64_t growth) {
    int64_t left = atomic_load(&control->free_bytes);
    if (left == UNLIMITED || growth <= 0)
        return length;
    int64_t missing = growth > left ? growth - left : 0;
    if (missing >= length)
        return 0;
    atomic_fetch_sub(&control->free_bytes, growth - missing);
    return length - missing;
}

static ssize_t write_at(int fd, const struct stat *file, const void *data, size_t bytes, off_t offset, bool moves) {
    int64_t length = (int64_t)bytes;
    if (is_turn(&control->refuse_writes) || atomic_load(&control->refuse_writes) > 0)
        length = 0;
    else if (length > 1 && chance(atomic_load(&control->short_writes))) {
        atomic_fetch_add(&control->shortened, 1);
        length = 1 + (int64_t)((uint64_t)atomic_load(&control->random) % (uint64_t)(length - 1));
    }
    if (length > 0)
        length = take_room(length, offset + length - file->st_size);
    if (length == 0) {
        atomic_fetch_add(&control->refused, 1);
        errno = ENOSPC;
        return -1;
    }
    note_content(WRITE, fd, file, offset, length);
    return moves ? syscall(SYS_write, fd, data, (size_t)length)
                 : syscall(SYS_pwrite64, fd, data, (size_t)length, offset);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset) {
    struct stat file;
    if (bytes == 0 || !is_ours(fd, S_IFREG, &file, NULL))
        return REAL(pwrite64)(fd, data, bytes, offset);
    hold();
    ssize_t done = fstat(fd, &file) != 0 ? -1 : write_at(fd, &file, data, bytes, offset, false);
    release();
    return done;
}

ALSO_AS("pwrite64") ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset);

EXPORT ssize_t write(int fd, const void *data, size_t bytes) {
    struct stat file;
    if (bytes == 0 || !is_ours(fd, S_IFREG, &file, NULL))
        return REAL(write)(fd, data, bytes);
    hold();
    ssize_t done = -1;
    if (fstat(fd, &file) == 0) {
        off_t offset = (fcntl(fd, F_GETFL) & O_APPEND) != 0 ? file.st_size : lseek(fd, 0, SEEK_CUR);
        done = write_at(fd, &file, data, bytes, offset, true);
    }
    release();
    return done;
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
    struct stat file;
    if (!is_ours(fd, S_IFREG, &file, NULL))
        return REAL(writev)(fd, parts, count);
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len > 0)
            return write(fd, parts[i].iov_base, parts[i].iov_len);
    return 0;
}

// Ways around write: refused, so that callers go the ordinary way.
EXPORT ssize_t sendfile64(int out, int in, off_t *offset, size_t bytes) {
    struct stat file;
    if (!is_ours(out, S_IFREG, &file, NULL))
        return REAL(sendfile64)(out, in, offset, bytes);
    errno = EINVAL;
    return -1;
}

EXPORT ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t bytes, unsigned flags) {
    struct stat file;
    if (!is_ours(out, S_IFREG, &file, NULL))
        return REAL(copy_file_range)(in, from, out, to, bytes, flags);
    errno = EINVAL;
    return -1;
}

EXPORT int ftruncate64(int fd, off_t size) {
    struct stat file;
    if (!is_ours(fd, S_IFREG, &file, NULL))
        return REAL(ftruncate64)(fd, size);
    hold();
    int done = fstat(fd, &file);
    if (done == 0 && size != file.st_size) {
        int64_t shrunk = file.st_size - size;
        note_content(TRUNCATE, fd, &file, size, shrunk > 0 ? shrunk : 0);
        done = (int)syscall(SYS_ftruncate, fd, size);
        if (done == 0)
            give_back(shrunk);
    }
    release();
    return done;
}

ALSO_AS("ftruncate64") int ftruncate(int fd, off_t size);

static void die_if(_Atomic int64_t *counter) {
    if (is_turn(counter))
        syscall(SYS_kill, getpid(), SIGKILL);
}

static int sync_by(int fd, long call) {
    struct stat file;
    char path[PATH_MAX];
    bool is_folder = is_ours(fd, S_IFDIR, &file, path);
    if (!is_folder && !is_ours(fd, S_IFREG, &file, NULL))
        return (int)syscall(call, fd);
    die_if(&control->die_before_sync);
    struct record record = {
        .kind = is_folder ? SYNC_FOLDER : SYNC, .sequence = atomic_load(&control->sequence), .inode = file.st_ino};
    int done = 0;
    // SQLite takes no notice when the sync of a folder fails (os_unix.c, unixSync), so chance spares folders.
    if (is_turn(&control->fail_sync) || (!is_folder && chance(atomic_load(&control->sync_failures)))) {
        atomic_fetch_add(&control->failed_syncs, 1);
        record.kind = is_folder ? 0 : SYNC_FAILED;
        errno = EIO;
        done = -1;
    } else {
        done = (int)syscall(call, fd);
        atomic_fetch_add(&control->syncs, 1);
    }
    int error = errno;
    if (record.kind != 0) {
        hold();
        note(&record, is_folder ? path : NULL, NULL, NULL);
        release();
    }
    die_if(&control->die_after_sync);
    errno = error;
    return done;
}

EXPORT int fsync(int fd) {
    return sync_by(fd, SYS_fsync);
}

EXPORT int fdatasync(int fd) {
    return sync_by(fd, SYS_fdatasync);
}

// Keep a second name for a file that is about to lose its own, so that a power cut can bring it back.
static void keep(const char *path, int64_t sequence) {
    char kept[PATH_MAX + 32];
    snprintf(kept, sizeof kept, "%s/%lld", undo, (long long)sequence);
    syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, kept, 0);
}

static void note_entry(enum kind kind, const char *path, const char *other, uint64_t inode, int64_t sequence) {
    struct record record = {.kind = kind, .sequence = sequence, .inode = inode};
    note(&record, path, other, NULL);
}

static int open_by(int at, const char *path, int flags, mode_t mode) {
    char resolved[PATH_MAX];
    struct stat file;
    if ((flags & (O_CREAT | O_TRUNC)) == 0 || !resolve(at, path, resolved))
        return (int)syscall(SYS_openat, at, path, flags, mode);
    hold();
    bool is_new = lstat(resolved, &file) != 0;
    int fd = -1;
    if (is_new && (flags & O_CREAT) != 0 && is_full()) {
        errno = ENOSPC;
    } else {
        if (!is_new && (flags & O_TRUNC) != 0 && S_ISREG(file.st_mode) && file.st_size > 0) {
            int reading = (int)syscall(SYS_openat, AT_FDCWD, resolved, O_RDONLY | O_CLOEXEC, 0);
            if (reading >= 0) {
                note_content(TRUNCATE, reading, &file, 0, file.st_size);
                give_back(file.st_size);
                syscall(SYS_close, reading);
            }
        }
        fd = (int)syscall(SYS_openat, at, path, flags, mode);
        int error = errno;
        if (fd >= 0 && is_new && fstat(fd, &file) == 0)
            note_entry(CREATE, resolved, NULL, file.st_ino, next_sequence());
        errno = error;
    }
    release();
    return fd;
}

static mode_t mode_of(int flags, va_list arguments) {
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

EXPORT int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_by(AT_FDCWD, path, flags, mode);
}

ALSO_AS("open64") int open(const char *path, int flags, ...);

EXPORT int openat64(int at, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_by(at, path, flags, mode);
}

ALSO_AS("openat64") int openat(int at, const char *path, int flags, ...);

EXPORT int renameat(int from_at, const char *from, int to_at, const char *to) {
    char source[PATH_MAX], target[PATH_MAX];
    struct stat moved, replaced;
    bool leaves = resolve(from_at, from, source), arrives = resolve(to_at, to, target);
    if ((!leaves && !arrives) || lstat(source, &moved) != 0)
        return (int)syscall(SYS_renameat, from_at, from, to_at, to);
    hold();
    int64_t sequence = next_sequence(), gone = 0;
    if (lstat(target, &replaced) == 0 && S_ISREG(replaced.st_mode)) {
        gone = replaced.st_nlink == 1 ? replaced.st_size : 0;
        keep(target, sequence);
    }
    note_entry(RENAME, source, target, moved.st_ino, sequence);
    int done = (int)syscall(SYS_renameat, from_at, from, to_at, to);
    if (done == 0)
        give_back(gone);
    release();
    return done;
}

EXPORT int rename(const char *from, const char *to) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

EXPORT int unlinkat(int at, const char *path, int flags) {
    char resolved[PATH_MAX];
    struct stat file;
    if (!resolve(at, path, resolved) || lstat(resolved, &file) != 0)
        return (int)syscall(SYS_unlinkat, at, path, flags);
    hold();
    int64_t sequence = next_sequence();
    bool is_folder = (flags & AT_REMOVEDIR) != 0;
    if (S_ISREG(file.st_mode) && !is_folder)
        keep(resolved, sequence);
    note_entry(is_folder ? REMOVE_FOLDER : UNLINK, resolved, NULL, file.st_ino, sequence);
    int done = (int)syscall(SYS_unlinkat, at, path, flags);
    if (done == 0 && S_ISREG(file.st_mode) && file.st_nlink == 1)
        give_back(file.st_size);
    release();
    return done;
}

EXPORT int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

EXPORT int rmdir(const char *path) {
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

// After `done` made the entry `path`: note it.
static int made(enum kind kind, int done, const char *path) {
    struct stat file;
    int error = errno;
    if (done == 0 && lstat(path, &file) == 0)
        note_entry(kind, path, NULL, file.st_ino, next_sequence());
    errno = error;
    return done;
}

EXPORT int mkdirat(int at, const char *path, mode_t mode) {
    char resolved[PATH_MAX];
    if (!resolve(at, path, resolved))
        return (int)syscall(SYS_mkdirat, at, path, mode);
    hold();
    int done = -1;
    if (access(resolved, F_OK) != 0 && is_full())
        errno = ENOSPC;
    else
        done = made(MAKE_FOLDER, (int)syscall(SYS_mkdirat, at, path, mode), resolved);
    release();
    return done;
}

EXPORT int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

EXPORT int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    char resolved[PATH_MAX];
    if (!resolve(to_at, to, resolved))
        return (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
    hold();
    int done = made(CREATE, (int)syscall(SYS_linkat, from_at, from, to_at, to, flags), resolved);
    release();
    return done;
}

EXPORT int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORT int statvfs64(const char *path, struct statvfs64 *found) {
    int done = REAL(statvfs64)(path, found);
    char resolved[PATH_MAX];
    if (done == 0 && control != NULL && realpath(path, resolved) != NULL && is_inside(resolved)) {
        int64_t left = atomic_load(&control->free_bytes);
        if (left != UNLIMITED)
            found->f_bavail = found->f_bfree = (fsblkcnt64_t)left / found->f_frsize;
    }
    return done;
}

EXPORT int statvfs(const char *path, struct statvfs *found) {
    return statvfs64(path, (struct statvfs64 *)found);
}

static int64_t offset_ns(void) {
    return control != NULL ? atomic_load(&control->clock_offset_ns) : 0;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = REAL(clock_gettime)(clock, now);
    if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && offset_ns() != 0) {
        int64_t shifted = now->tv_sec * 1000000000LL + now->tv_nsec + offset_ns();
        now->tv_sec = shifted / 1000000000LL;
        now->tv_nsec = shifted % 1000000000LL;
    }
    return done;
}

EXPORT time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into != NULL)
        *into = now.tv_sec;
    return now.tv_sec;
}

EXPORT int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
