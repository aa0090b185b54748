// Runs in freeze and in thaw. Gives a process a folder as its root: a container image's files, unpacked.
//
// Sources of mounts are opened in the machine's tree, before the root changes. Paths in the root are looked up after
// the change, so that the kernel resolves absolute links, and `..`, within the root.
//
// Source: pivot_root(2), open_tree(2), move_mount(2), mount_namespaces(7).

#define _GNU_SOURCE
#include "root.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/stat.h>

#include "disk_parts.h"
#include "text.h"

#define DETACH 2 // MNT_DETACH
#define OWN_FOLDER "/.thawd"
#define SYS_MOUNT_SETATTR 442    // since Linux 5.12; newer than some headers
#define RECURSIVE 0x8000         // AT_RECURSIVE
#define ATTRIBUTE_READ_ONLY 1    // MOUNT_ATTR_RDONLY
#define ATTRIBUTES_BYTES (4 * 8) // struct mount_attr: flags to set, flags to clear, propagation, a descriptor

// What a process sees of the machine in its root: devices, and files, which are read-only and may be missing.
static const struct {
    const char *path;
    int is_file;
} shown[] = {
    {"/dev/null", 0},    {"/dev/zero", 0},  {"/dev/full", 0},        {"/dev/random", 0},
    {"/dev/urandom", 0}, {"/etc/hosts", 1}, {"/etc/resolv.conf", 1},
};
#define SHOWN (int)(sizeof shown / sizeof *shown)

// What /proc has of the machine, not of processes. The machine's root may write to it without any capability.
static const char *const of_the_kernel[] = {"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"};

static const struct {
    const char *path, *target;
} links[] = {
    {"/dev/fd", "/proc/self/fd"},
    {"/dev/stdin", "/proc/self/fd/0"},
    {"/dev/stdout", "/proc/self/fd/1"},
    {"/dev/stderr", "/proc/self/fd/2"},
};

// Descriptors of what is mounted in the root.
struct sources {
    int proc, own, lower, upper, work, binds[MOST_BINDS], shown[SHOWN];
};

static int open_path(const char *path) {
    return sys_open(path, O_PATH | O_CLOEXEC, 0);
}

static int open_sources(const struct disk *disk, struct sources *from, struct disk_failure *failure) {
    from->proc = open_path("/proc");
    from->own = from->lower = from->upper = from->work = -1;
    if (disk->at && disk->lower) {
        from->lower = open_path(disk->lower);
        from->upper = open_folder(disk->own, "/upper");
        from->work = open_folder(disk->own, "/work");
        if (from->lower < 0)
            return disk_fails(failure, from->lower, 1,
                              "the disk snapshot that belongs to the image is gone: ", disk->lower);
    } else if (disk->at) {
        from->own = open_path(disk->own);
        if (from->own < 0)
            return disk_fails(failure, from->own, 0, "the process's own folder cannot be opened: ", disk->own);
    }
    for (int i = 0; i < SHOWN; i++)
        from->shown[i] = open_path(shown[i].path);
    for (int i = 0; i < disk->bind_count; i++) {
        from->binds[i] = open_path(disk->binds[i].folder);
        if (from->binds[i] < 0)
            return disk_fails(failure, from->binds[i], 1,
                              "a folder that is mounted in the root is gone: ", disk->binds[i].folder);
    }
    return 0;
}

// The process keeps no descriptor of the machine's files: it could leave its root by one.
static void close_sources(const struct disk *disk, const struct sources *from) {
    const int own[] = {from->proc, from->own, from->lower, from->upper, from->work};
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i] >= 0)
            sys_close(own[i]);
    for (int i = 0; i < SHOWN; i++)
        if (from->shown[i] >= 0)
            sys_close(from->shown[i]);
    for (int i = 0; i < disk->bind_count; i++)
        if (from->binds[i] >= 0)
            sys_close(from->binds[i]);
}

// Makes the folder `disk->root` the root. The old root stays mounted on it, out of sight, until `leave_old_root`.
static int change_root(const struct disk *disk, struct disk_failure *failure) {
    long result = sys6(SYS_mount, (long)disk->root, (long)disk->root, 0, MS_BIND, 0, 0);
    if (!result)
        result = sys3(SYS_chdir, (long)disk->root, 0, 0);
    if (result < 0)
        return disk_fails(failure, result, 1,
                          "the root folder of the function's container image cannot be mounted (if it is gone, update "
                          "the function's code): ",
                          disk->root);
    result = sys3(SYS_pivot_root, (long)".", (long)".", 0);
    return result < 0 ? disk_fails(failure, result, 1,
                                   "the kernel refuses pivot_root; a container image needs a machine whose own root is "
                                   "not the initial ramdisk, and, in a container, a seccomp profile that allows it",
                                   "")
                      : 0;
}

static int leave_old_root(struct disk_failure *failure) {
    long result = sys3(SYS_umount2, (long)".", DETACH, 0);
    if (!result)
        result = sys3(SYS_chdir, (long)"/", 0, 0);
    return result < 0 ? disk_fails(failure, result, 1, "the machine's root cannot be unmounted", "") : 0;
}

// Mounts what the descriptor refers to at a path in the root.
static long attach(int from, const char *at, int recursive) {
    long tree = from < 0 ? from
                         : sys3(SYS_open_tree, from, (long)"",
                                OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0));
    if (tree < 0)
        return tree;
    long result =
        sys6(SYS_move_mount, tree, (long)"", AT_FDCWD, (long)at, MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_SYMLINKS, 0);
    sys_close((int)tree);
    return result;
}

static int cannot_mount(struct disk_failure *failure, long error, const char *at) {
    return disk_fails(failure, error, 1,
                      "in the container image's root this is missing, or nothing can be mounted on "
                      "it: ",
                      at);
}

// Whether the machine's root runs this process: then it owns what is the machine's, and could change it by that right.
static int owns(const char *path) {
    struct stat status;
    return !sys_stat(path, &status) && status.st_uid == (uint32_t)sys3(SYS_geteuid, 0, 0, 0);
}

static int protect_kernel(struct disk_failure *failure) {
    static const uint64_t read_only[] = {ATTRIBUTE_READ_ONLY, 0, 0, 0};
    for (unsigned i = 0; i < sizeof of_the_kernel / sizeof *of_the_kernel && owns("/proc/sys"); i++) {
        const char *at = of_the_kernel[i];
        int from = open_path(at);
        if (from == -ENOENT)
            continue;
        long result = attach(from, at, 1);
        if (from >= 0)
            sys_close(from);
        if (!result)
            result = sys6(SYS_MOUNT_SETATTR, AT_FDCWD, (long)at, RECURSIVE, (long)read_only, ATTRIBUTES_BYTES, 0);
        if (result == -ENOSYS)
            result = disk_make_read_only(at);
        if (result < 0)
            return cannot_mount(failure, result, at);
    }
    return 0;
}

static int mount_shown(const struct sources *from, struct disk_failure *failure) {
    for (int i = 0; i < SHOWN; i++) {
        long result = attach(from->shown[i], shown[i].path, 0);
        if (!result && (shown[i].is_file || owns(shown[i].path))) // a device can be written to nevertheless
            result = disk_make_read_only(shown[i].path);
        else if (result == -ENOENT && shown[i].is_file)
            result = 0;
        if (result < 0)
            return cannot_mount(failure, result, shown[i].path);
    }
    long result =
        sys6(SYS_mount, (long)"thawd-shm", (long)"/dev/shm", (long)"tmpfs", MS_NOSUID | MS_NODEV, (long)"mode=1777", 0);
    return result < 0 ? cannot_mount(failure, result, "/dev/shm") : 0;
}

static int mount_temporary(const struct disk *disk, const struct sources *from, struct disk_failure *failure) {
    if (!disk->at)
        return 0;
    if (disk->lower)
        return disk_mount_overlay(disk, from->lower, from->upper, from->work, failure);
    long result = attach(from->own, disk->at, 0);
    return result < 0 ? cannot_mount(failure, result, disk->at) : 0;
}

static int mount_binds(const struct disk *disk, const struct sources *from, struct disk_failure *failure) {
    for (int i = 0; i < disk->bind_count; i++) {
        const char *at = disk->binds[i].at;
        long result = attach(from->binds[i], at, 0);
        if (!result && !disk->binds[i].writable)
            result = disk_make_read_only(at);
        if (result < 0)
            return cannot_mount(failure, result, at);
    }
    return 0;
}

static int mount_all(const struct disk *disk, const struct sources *from, struct disk_failure *failure) {
    long result = attach(from->proc, "/proc", 1); // with what is mounted in it: a container hides parts of it
    if (result < 0)
        return cannot_mount(failure, result, "/proc");
    int error = protect_kernel(failure);
    if (!error)
        error = mount_shown(from, failure);
    if (!error)
        error = mount_temporary(disk, from, failure);
    return error ? error : mount_binds(disk, from, failure);
}

int root_enter(const struct disk *disk, struct disk_failure *failure) {
    struct sources from;
    int error = open_sources(disk, &from, failure);
    if (!error)
        error = change_root(disk, failure);
    if (!error && disk->make_places)
        error = root_make_places(disk, failure);
    else if (!error)
        error = mount_all(disk, &from, failure);
    if (error)
        return error;
    close_sources(disk, &from);
    error = leave_old_root(failure);
    if (error)
        return error;
    long result = disk_make_read_only("/");
    if (result < 0)
        return disk_fails(failure, result, 1, "the container image's root cannot be made read-only", "");
    result = disk->working ? sys3(SYS_chdir, (long)disk->working, 0, 0) : 0;
    return result < 0 ? disk_fails(failure, result, 1,
                                   "the working folder does not exist in the container image: ", disk->working)
                      : 0;
}

// Makes the folders on the way to `path`, and `path` itself if it is a folder.
static long make_folders(const char *path, int with_last) {
    char part[4096];
    long result = 0;
    if (text_bytes(path) >= sizeof part)
        return -ENAMETOOLONG;
    for (uint64_t i = 0;; i++) {
        part[i] = 0;
        if (i && (path[i] == '/' || (!path[i] && with_last)))
            result = sys3(SYS_mkdir, (long)part, 0755, 0);
        if (result < 0 && result != -EEXIST)
            return result;
        result = 0;
        if (!path[i])
            return 0;
        part[i] = path[i];
    }
}

static long make_file(const char *path) {
    long result = make_folders(path, 0);
    if (result < 0)
        return result;
    int fd = sys_open(path, O_PATH | O_CLOEXEC, 0);
    if (fd == -ENOENT)
        fd = sys_open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
    if (fd < 0)
        return fd;
    sys_close(fd);
    return 0;
}

static int cannot_make(struct disk_failure *failure, long error, const char *path) {
    return disk_fails(failure, error, 0, "this cannot be made in the container image's root: ", path);
}

int root_make_places(const struct disk *disk, struct disk_failure *failure) {
    static const char *const folders[] = {"/proc", "/dev/shm", "/tmp", OWN_FOLDER};
    long result;
    for (unsigned i = 0; i < sizeof folders / sizeof *folders; i++)
        if ((result = make_folders(folders[i], 1)) < 0)
            return cannot_make(failure, result, folders[i]);
    for (int i = 0; i < SHOWN; i++)
        if ((result = make_file(shown[i].path)) < 0 && !shown[i].is_file)
            return cannot_make(failure, result, shown[i].path);
    for (unsigned i = 0; i < sizeof links / sizeof *links; i++)
        if ((result = sys3(SYS_symlink, (long)links[i].target, (long)links[i].path, 0)) < 0 && result != -EEXIST)
            return cannot_make(failure, result, links[i].path);
    for (int i = 0; i < disk->bind_count; i++)
        if ((result = make_folders(disk->binds[i].at, 1)) < 0)
            return cannot_make(failure, result, disk->binds[i].at);
    return 0;
}
