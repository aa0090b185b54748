// Runs in both address spaces. A folder of this process's own, under the path where the frozen process had its
// temporary folder: paths are part of the frozen memory, so each copy must find its own files under the same one.

#ifndef THAWD_DISK_H
#define THAWD_DISK_H

struct disk {
    const char *at;  // where the frozen process knows its temporary folder: a folder must be there; NULL: no disk
    const char *own; // of this process alone: with `lower` it holds the folders "upper" and "work", else it is mounted
    const char *lower;  // what all copies begin with, never written to; NULL: `own` holds all there is
    const char *tmp;    // where the same folder is to be seen as well, such as "/tmp"; NULL: nowhere else
    const char *code;   // a folder that is to be read-only; NULL: none
    int own_user;       // a user namespace of its own in any case, in which it keeps the capabilities that it has there
    int is_environment; // where it has a user namespace of its own, MAX_PROCESSES are counted in it
};

struct disk_failure {
    const char *what, *detail; // joined; `what` says the way out where there is one
    int refused;               // it cannot be had here, now or later
};

// With `own_user`, `at` may be NULL: then nothing is mounted.
// Takes this process, which must have a single thread, into a mount namespace of its own, and mounts its folder on
// `at`: an overlay over `lower`, or `own` itself; then the same on `tmp`. Where it has no right to, it goes into a user
// namespace too, in which it is the same user and group and has no capabilities afterwards, unless it is root. 0, or
// -errno.
int disk_enter(const struct disk *disk, struct disk_failure *failure);

// Whether `path` lies below the folder `at`.
int disk_holds(const char *at, const char *path);

#endif
