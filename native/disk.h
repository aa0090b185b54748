// Runs in both address spaces. A folder of this process's own, under the path where the frozen process had its
// temporary folder: paths are part of the frozen memory, so each copy must find its own files under the same one.

#ifndef THAWD_DISK_H
#define THAWD_DISK_H

struct disk {
    const char *at;     // path of the frozen process's temporary folder, where a folder must exist; NULL: no disk
    const char *own;    // folder of this process alone: with `lower` it holds "upper" and "work", else it is mounted
    const char *lower;  // initial contents of all copies, never written to; NULL: `own` holds all contents
    const char *tmp;    // a second path at which to mount the folder, such as "/tmp"; NULL: none
    const char *code;   // a folder to make read-only; NULL: none
    int own_user;       // always enter a user namespace, and keep the capabilities in it
    int is_environment; // limit the processes to MAX_PROCESSES if a user namespace is entered
};

struct disk_failure {
    const char *what, *detail; // joined; `what` includes the way out if there is one
    int refused;               // this machine or user cannot have it, now or later
};

// Moves this process, which must have a single thread, into a mount namespace of its own, and mounts its folder on
// `at`: an overlay over `lower`, or `own` itself; then the same folder on `tmp`. Without the right to mount, the
// process also enters a user namespace, in which it has the same user and group and afterwards, unless it is root, no
// capabilities. With `own_user`, `at` may be NULL: then nothing is mounted. Returns 0, or -errno.
int disk_enter(const struct disk *disk, struct disk_failure *failure);

// Whether `path` is below the folder `at`.
int disk_holds(const char *at, const char *path);

#endif
