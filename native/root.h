// Runs in freeze and in thaw. Gives a process a folder as its root: a container image's files, unpacked.

#ifndef THAWD_ROOT_H
#define THAWD_ROOT_H

#include "disk.h"

// The process, which has just entered its mount namespace, gets `disk->root` as its root folder, mounted read-only, and
// the folder of `disk->working` as its working folder. It sees nothing else of the machine but these:
// - /proc, the devices null, zero, full, random and urandom, and the machine's /etc/resolv.conf and /etc/hosts;
// - an empty /dev/shm of its own;
// - its temporary folder, at `disk->at`;
// - the folders of `disk->binds`.
// All paths in the root are resolved in the root: a link cannot lead out of it. Returns 0, or -errno.
int root_enter(const struct disk *disk, struct disk_failure *failure);

// Makes what `root_enter` mounts on, where it is missing, in the root of a process that has entered its namespaces.
// Several processes may do this at the same time.
int root_make_places(const struct disk *disk, struct disk_failure *failure);

#endif
