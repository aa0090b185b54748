// Runs in freeze and in thaw. What disk.c, root.c and thaw_clocks.c share.

#ifndef THAWD_DISK_PARTS_H
#define THAWD_DISK_PARTS_H

#include <stdint.h>
#include <sys/mount.h>

#include "disk.h"

// Describes a failure; returns `error`, which is -errno.
int disk_fails(struct disk_failure *failure, long error, int refused, const char *what, const char *detail);
// Writes a text to an existing file. Returns 0, or -errno.
int disk_write_text(const char *path, const char *text);
// In a new user namespace, maps one user and one group to themselves. Returns 0, or -errno.
int disk_map_ids(uint64_t user, uint64_t group, struct disk_failure *failure);
// Opens the folder `name` in `folder` as a path only. Call it after the namespaces were entered: overlayfs refuses
// folders that were opened in another mount namespace.
int open_folder(const char *folder, const char *name);
// Mounts an overlay on `disk->at` from open folders. /proc must be mounted. Returns 0, or -errno.
int disk_mount_overlay(const struct disk *disk, int lower, int upper, int work, struct disk_failure *failure);
// Makes the mount at `at` read-only. Returns 0, or -errno.
long disk_make_read_only(const char *at);

#endif
