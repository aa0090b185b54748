// Runs in the process that is frozen. What the parts that look at descriptors share.

#ifndef THAWD_DESCRIPTORS_H
#define THAWD_DESCRIPTORS_H

#include <sys/stat.h>

#include "freeze_parts.h"

#define LINK_BYTES 4200

// One descriptor while it is being described.
struct look {
    struct descriptor *to;
    struct stat status;
    char link[LINK_BYTES];
    const char *info; // /proc/self/fdinfo/N
};

// Refuses the freeze because of this descriptor: `what` says why and the way out, and ends with "descriptor ".
int refuse_descriptor(struct freezing *f, const struct look *look, const char *what);
int refuse_unknown(struct freezing *f, const struct look *look);

// pipes.c: describes one end, for a read end also the pipe's contents; then numbers the pipes, whose ends must both be
// in this process. Return 0 or a freeze_result.
int pipe_describe(struct freezing *f, struct look *look);
int pipes_pair(struct freezing *f);
// Room for `bytes` of the descriptor's contents, which go into the image; NULL when there is none.
void *contents_room(struct freezing *f, struct look *look, uint64_t bytes);
// The contents of record `index` of SECTION_DESCRIPTORS are not stored after all.
void contents_forget(struct freezing *f, uint32_t index);

// sockets.c: describes one socket; then, once all descriptors are known, the parts that depend on other descriptors.
// Return 0 or a freeze_result.
int socket_describe(struct freezing *f, struct look *look);
int sockets_settle(struct freezing *f);

// rings.c: describes an io_uring; then checks that every mapping of one belongs to a descriptor. Return 0 or a
// freeze_result.
int ring_describe(struct freezing *f, struct look *look);
int rings_settle(struct freezing *f);

// events.c: describes an eventfd, epoll, timerfd, signalfd or inotify descriptor. Returns 1 for any other.
int event_describe(struct freezing *f, struct look *look);

#endif
