// Runs inside the server under test: the calls of the C library by which it uses its disk and its clock, taken over by
// LD_PRELOAD. What concerns another disk, or no disk, goes on to the C library or the kernel as it is.

#define _GNU_SOURCE
#include "faulty_disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define ALSO_AS(name) __attribute__((visibility("default"), alias(name)))
#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
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
    if (done == 0 && has_disk() && realpath(path, resolved) != NULL && is_inside(resolved)) {
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
    return has_disk() ? atomic_load(&control->clock_offset_ns) : 0;
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
