// Runs in the process that is frozen. What the parts that look at descriptors share.

#ifndef THAWD_DESCRIPTORS_H
#define THAWD_DESCRIPTORS_H

#include <sys/stat.h>

#include "freezing.h"

#define LINK_BYTES 4200

// One descriptor while it is looked at.
struct look {
    struct descriptor *to;
    struct stat status;
    char link[LINK_BYTES];
    const char *info; // /proc/self/fdinfo/N
};

// Refuse the freeze because of it: `what` says why and the way out, and ends with "descriptor ".
int refuse_descriptor(struct freezing *f, const struct look *look, const char *what);
int refuse_unknown(struct freezing *f, const struct look *look);

// pipes.c: one end, with what the pipe holds if it is a read end; then numbers the pipes, of which both ends must be
// here. 0 or a freeze_result.
int pipe_describe(struct freezing *f, struct look *look);
int pipes_pair(struct freezing *f);
// Room for `bytes` that the descriptor holds and that go into the image; NULL when there is none.
void *contents_room(struct freezing *f, struct look *look, uint64_t bytes);
// What record `index` of SECTION_DESCRIPTORS holds is not to be stored after all.
void contents_forget(struct freezing *f, uint32_t index);

// sockets.c: one socket; then, once all descriptors are known, what of them depends on others. 0 or a freeze_result.
int socket_describe(struct freezing *f, struct look *look);
int sockets_settle(struct freezing *f);

// rings.c: an io_uring; then, whether every mapping of one belongs to a descriptor. 0 or a freeze_result.
int ring_describe(struct freezing *f, struct look *look);
int rings_settle(struct freezing *f);

// events.c: eventfd, epoll, timerfd, signalfd, inotify. 1: it is none of these.
int event_describe(struct freezing *f, struct look *look);

#endif
