// Runs in freeze and in thaw. Mounts a private folder at the path of the frozen process's temporary folder. Paths are
// part of the frozen memory, so each copy must find its own files at the same path.

#ifndef THAWD_DISK_H
#define THAWD_DISK_H

#define MOST_BINDS 128

// A folder that a process with a root of its own sees inside of it.
struct root_bind {
    const char *folder, *at; // `at` is a path in the root, where a folder must exist
    int writable;
};

struct disk {
    const char *at;      // path of the frozen process's temporary folder, where a folder must exist; NULL: no disk
    const char *own;     // folder that only this process uses; with `lower` it holds the folders "upper" and "work"
    const char *lower;   // folder with the initial contents of all copies, never written to; NULL: `own` is mounted
    const char *tmp;     // a second path at which to mount the folder, such as "/tmp"; NULL: none
    const char *code;    // a folder to make read-only; NULL: none
    const char *task;    // the code, to mount at /var/task, which becomes the working folder; NULL: not mounted
    const char *runtime; // the runtime, to mount read-only at /var/runtime; NULL: not mounted
    const char *opt;     // the merged layers, to mount read-only at /opt; NULL: not mounted
    const char *root;    // a folder to become the root (root.h); then `at` is a path in it, and `tmp`, `code`, `task`,
                         // `runtime` and `opt` are NULL. NULL: the process sees the machine's files
    const char *working; // with `root`: the working folder, a path in the root
    struct root_bind binds[MOST_BINDS]; // with `root`: further folders to mount
    int bind_count;
    int make_places;    // with `root`: only make what is missing in it for the mounts
    int own_user;       // always enter a user namespace; root then has capabilities in that namespace only
    int is_environment; // limit the processes to 1,024 if a user namespace is entered
};

struct disk_failure {
    const char *what, *detail; // joined; `what` also says what to do, if something can be done
    int refused;               // 1: this machine or user does not permit it, so that trying again is useless
};

// Moves this process, which must have a single thread, into a mount namespace of its own. Mounts its folder on `at`: an
// overlay over `lower`, or `own` itself. Then mounts the same folder on `tmp`, with a private /dev/shm, makes `code`
// read-only, and mounts `task`, `runtime` and `opt` at Lambda's paths, where folders must exist. If the process has no
// right to mount, it also enters a user namespace: its user and group stay the same and, unless it is root, it has no
// capabilities afterwards. With `own_user`, `at` may be NULL; then nothing is mounted. Returns 0, or -errno.
int disk_enter(const struct disk *disk, struct disk_failure *failure);

// Whether `path` is below the folder `at`.
int disk_holds(const char *at, const char *path);

#endif
