// Runs in freeze and in thaw. Mounts a private folder at the path of the frozen process's temporary folder, in a mount
// namespace.
//
// The namespace and its mounts exist as long as a process is in it; afterwards only the copy's own folder (`own`) is
// left and must be removed. Processes that this one starts are in the same namespace and see the same files.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sys/resource.h>
#include <sys/statfs.h>

#include "disk.h"
#include "disk_parts.h"
#include "drop_capabilities.h"
#include "root.h"
#include "text.h"

#define OVERLAY_MAGIC 0x794c7630 // OVERLAYFS_SUPER_MAGIC
#define MAX_PROCESSES 1024       // Lambda quotas, "Execution processes/threads"
#define READ_ONLY 1              // ST_RDONLY
#define ST_NOSUID 2
#define ST_NODEV 4
#define ST_NOEXEC 8
#define ST_NOATIME 1024
#define ST_NODIRATIME 2048
#define ST_RELATIME 4096

int disk_fails(struct disk_failure *failure, long error, int refused, const char *what, const char *detail) {
    *failure = (struct disk_failure){what, detail, refused};
    return (int)error;
}

int disk_write_text(const char *path, const char *text) {
    int fd = sys_open(path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    long wrote = sys_write(fd, text, text_bytes(text));
    sys_close(fd);
    return wrote < 0 ? (int)wrote : 0;
}

// Maps one id to itself: an unprivileged process may not map more than one.
static int map_id(const char *path, uint64_t id) {
    char line[64];
    struct writer out = text_writer(line, sizeof line);
    put_number(&out, id, 10);
    put_text(&out, " ");
    put_number(&out, id, 10);
    put_text(&out, " 1");
    return disk_write_text(path, line);
}

int disk_map_ids(uint64_t user, uint64_t group, struct disk_failure *failure) {
    // An unprivileged process must disable setgroups before it may map its group. Source: user_namespaces(7).
    int result = disk_write_text("/proc/self/setgroups", "deny");
    if (!result)
        result = map_id("/proc/self/uid_map", user);
    if (!result)
        result = map_id("/proc/self/gid_map", group);
    return result
               ? disk_fails(failure, result, 1,
                            "the user namespace of a copy cannot be set up: /proc/self/uid_map cannot be written", "")
               : 0;
}

// Limits the number of processes, since Linux 5.14. Older kernels do not count the processes of a user namespace
// separately: all processes of the user would count towards the limit. So no limit is set there.
// Source: the kernel's kernel/ucount.c, is_rlimit_overlimit.
static void limit_processes(void) {
    char release[128];
    const char *at = release;
    if (read_text_file("/proc/sys/kernel/osrelease", release, sizeof release) <= 0)
        return;
    uint64_t version = take_number(&at, 10) * 1000;
    at += *at == '.';
    version += take_number(&at, 10);
    uint64_t limit[2];
    if (version < 5014 || sys6(SYS_prlimit64, 0, RLIMIT_NPROC, 0, (long)limit, 0, 0))
        return;
    for (int i = 0; i < 2; i++)
        limit[i] = limit[i] < MAX_PROCESSES ? limit[i] : MAX_PROCESSES;
    sys6(SYS_prlimit64, 0, RLIMIT_NPROC, (long)limit, 0, 0, 0);
}

static int enter_namespaces(const struct disk *disk, int *with_user, struct disk_failure *failure) {
    long result = disk->own_user ? -EPERM : sys3(SYS_unshare, CLONE_NEWNS, 0, 0);
    *with_user = result == -EPERM;
    if (*with_user) {
        uint64_t user = (uint64_t)sys3(SYS_geteuid, 0, 0, 0), group = (uint64_t)sys3(SYS_getegid, 0, 0, 0);
        result = sys3(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS, 0, 0);
        if (!result) {
            if (disk->is_environment)
                limit_processes();
            return disk_map_ids(user, group, failure);
        }
    }
    if (result < 0)
        return disk_fails(
            failure, result, 1,
            "a copy needs a mount namespace for its own temporary folder, and this user may not create one; "
            "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_"
            "userns, kernel.unprivileged_userns_clone; in a container its seccomp profile)",
            "");
    return 0;
}

// Drops the capabilities in the new user namespace, which the copy does not need. Root keeps them. It would regain them
// at the next exec. It also needs them when a fork of the copy enters a user namespace to mount a folder of its own:
// the kernel lets only a process with CAP_SETFCAP map root to root.
static int drop_needless(struct disk_failure *failure) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    long result = sys3(SYS_geteuid, 0, 0, 0) ? sys3(SYS_capset, (long)&header, (long)none, 0) : 0;
    return result < 0 ? disk_fails(failure, result, 0, "capabilities cannot be dropped", "") : 0;
}

int open_folder(const char *folder, const char *name) {
    char path[4200];
    struct writer out = text_writer(path, sizeof path);
    put_text(&out, folder);
    put_text(&out, name);
    return sys_open(path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

static void put_folder(struct writer *out, const char *option, int fd) {
    put_text(out, option);
    put_text(out, "/proc/self/fd/"); // in a path, commas and colons would have to be escaped
    put_number(out, (unsigned)fd, 10);
}

// `volatile` (Linux 5.10): nothing is synced. Without it, the end of each copy would wait for all pending writes to the
// disk, including those of other processes. `userxattr` (Linux 5.11): overlayfs keeps its marks in user.* attributes.
static long mount_layers(const char *at, int lower, int upper, int work) {
    char options[256];
    struct writer out = text_writer(options, sizeof options);
    put_folder(&out, "lowerdir=", lower);
    put_folder(&out, ",upperdir=", upper);
    put_folder(&out, ",workdir=", work);
    // `redirect_dir` permits renaming folders of `lower`. It needs trusted.* attributes, which can be set only in the
    // first user namespace.
    put_text(&out, in_first_user_namespace() ? ",volatile,redirect_dir=on" : ",volatile,userxattr");
    return sys6(SYS_mount, (long)"overlay", (long)at, (long)"overlay", MS_NOSUID | MS_NODEV, (long)options, 0);
}

// If overlayfs cannot use its folder `work`, the kernel mounts the overlay read-only without an error.
static int check_writable(const struct disk *disk, struct disk_failure *failure) {
    struct statfs status;
    long result = sys3(SYS_statfs, (long)disk->at, (long)&status, 0);
    if (result < 0)
        return disk_fails(failure, result, 0, "the temporary folder of the copy cannot be examined: ", disk->at);
    if (status.f_type != OVERLAY_MAGIC || status.f_flags & READ_ONLY)
        return disk_fails(
            failure, -EROFS, 0,
            "the temporary folder of the copy was mounted read-only; the disk is full or read-only, or the "
            "copy's own folder was used before: ",
            disk->own);
    return 0;
}

int disk_mount_overlay(const struct disk *disk, int lower, int upper, int work, struct disk_failure *failure) {
    int result = (int)mount_layers(disk->at, lower, upper, work);
    int refused = result == -EPERM || result == -EINVAL || result == -ENODEV || result == -EACCES;
    if (result < 0)
        return disk_fails(failure, result, refused,
                          "an overlay cannot be mounted on the temporary folder of the frozen process (the folder is "
                          "gone, or this kernel or file system does not support overlays): ",
                          disk->at);
    return check_writable(disk, failure);
}

static int mount_overlay(const struct disk *disk, struct disk_failure *failure) {
    int lower = open_folder(disk->lower, ""), upper = open_folder(disk->own, "/upper");
    int work = open_folder(disk->own, "/work");
    int result;
    if (lower < 0)
        result = disk_fails(failure, lower, 1, "the disk snapshot that belongs to the image is gone: ", disk->lower);
    else if (upper < 0 || work < 0)
        result = disk_fails(failure, upper < 0 ? upper : work, 0,
                            "the copy's own folder, with \"upper\" and \"work\" in it, cannot be opened: ", disk->own);
    else
        result = disk_mount_overlay(disk, lower, upper, work, failure);
    if (lower >= 0)
        sys_close(lower);
    if (upper >= 0)
        sys_close(upper);
    if (work >= 0)
        sys_close(work);
    return result;
}

static int mount_own(const struct disk *disk, struct disk_failure *failure) {
    long result = sys6(SYS_mount, (long)disk->own, (long)disk->at, 0, MS_BIND, 0, 0);
    int refused = result == -EPERM || result == -EACCES;
    return result < 0
               ? disk_fails(failure, result, refused,
                            "the copy's own folder cannot be mounted on the temporary folder of the frozen process "
                            "(one of them is gone): ",
                            disk->at)
               : 0;
}

static int mount_tmp(const struct disk *disk, struct disk_failure *failure) {
    long result = disk->tmp ? sys6(SYS_mount, (long)disk->at, (long)disk->tmp, 0, MS_BIND, 0, 0) : 0;
    return result < 0 ? disk_fails(failure, result, 1, "the temporary folder cannot be mounted on ", disk->tmp) : 0;
}

// Mounts a private /dev/shm for a process that also gets its own `tmp`. The mount ends with the namespace. If the mount
// fails, the machine's /dev/shm stays visible.
static void mount_shared_memory(const struct disk *disk) {
    if (disk->tmp)
        sys6(SYS_mount, (long)"thawd-shm", (long)"/dev/shm", (long)"tmpfs", MS_NOSUID | MS_NODEV, (long)"mode=1777", 0);
}

// The flags of the mount at `path`. If a more privileged namespace made the mount, the kernel refuses a remount without
// them.
static long locked_flags(const char *path) {
    static const struct {
        long reported, mounted;
    } flags[] = {{ST_NOSUID, MS_NOSUID},   {ST_NODEV, MS_NODEV},           {ST_NOEXEC, MS_NOEXEC},
                 {ST_NOATIME, MS_NOATIME}, {ST_NODIRATIME, MS_NODIRATIME}, {ST_RELATIME, MS_RELATIME}};
    struct statfs status;
    long found = 0;
    if (sys3(SYS_statfs, (long)path, (long)&status, 0) < 0)
        return 0;
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++)
        if (status.f_flags & flags[i].reported)
            found |= flags[i].mounted;
    return found;
}

long disk_make_read_only(const char *at) {
    return sys6(SYS_mount, 0, (long)at, 0, MS_BIND | MS_REMOUNT | MS_RDONLY | locked_flags(at), 0, 0);
}

static long mount_read_only(const char *folder, const char *at) {
    long result = sys6(SYS_mount, (long)folder, (long)at, 0, MS_BIND, 0, 0);
    return result ? result : disk_make_read_only(at);
}

static int protect_code(const struct disk *disk, struct disk_failure *failure) {
    long result = disk->code ? mount_read_only(disk->code, disk->code) : 0;
    return result < 0 ? disk_fails(failure, result, 1, "the code folder cannot be made read-only: ", disk->code) : 0;
}

// Mounts code, runtime and layers where Lambda has them.
static int mount_as_on_lambda(const struct disk *disk, struct disk_failure *failure) {
    const struct {
        const char *folder, *at;
    } places[] = {{disk->task, "/var/task"}, {disk->runtime, "/var/runtime"}, {disk->opt, "/opt"}};
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        long result = places[i].folder ? mount_read_only(places[i].folder, places[i].at) : 0;
        if (result < 0)
            return disk_fails(failure, result, 1,
                              "this folder is missing, or nothing can be mounted on it: ", places[i].at);
    }
    long moved = disk->task ? sys3(SYS_chdir, (long)"/var/task", 0, 0) : 0;
    return moved < 0 ? disk_fails(failure, moved, 0, "the working folder cannot be changed to ", "/var/task") : 0;
}

static int mount_for_machine_root(const struct disk *disk, struct disk_failure *failure) {
    int result = disk->lower ? mount_overlay(disk, failure) : mount_own(disk, failure);
    if (!result)
        result = mount_tmp(disk, failure);
    if (!result)
        result = protect_code(disk, failure);
    if (!result)
        result = mount_as_on_lambda(disk, failure);
    if (!result)
        mount_shared_memory(disk);
    return result;
}

int disk_enter(const struct disk *disk, struct disk_failure *failure) {
    int with_user;
    int result = enter_namespaces(disk, &with_user, failure);
    if (result || (!disk->at && !disk->root))
        return result;
    // Slave, not private: mounts and unmounts outside the namespace take effect inside it, too. Otherwise a copy could
    // keep a disk busy that was unmounted outside.
    long made = sys6(SYS_mount, 0, (long)"/", 0, MS_REC | MS_SLAVE, 0, 0);
    if (made < 0)
        return disk_fails(failure, made, 1, "mounts of a copy cannot be hidden from other processes", "");
    result = disk->root ? root_enter(disk, failure) : mount_for_machine_root(disk, failure);
    return !result && with_user ? drop_needless(failure) : result;
}

int disk_holds(const char *at, const char *path) {
    return text_begins(path, at) && path[text_bytes(at)] == '/';
}
