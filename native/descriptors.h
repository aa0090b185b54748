// Runs in the process that is frozen. Declarations for the files that describe descriptors.

#ifndef THAWD_DESCRIPTORS_H
#define THAWD_DESCRIPTORS_H

#include <sys/stat.h>

#include "freeze_parts.h"

#define LINK_BYTES 4200

// One descriptor while it is being described.
struct look {
    struct descriptor *to; // its record in the image
    struct stat status;
    char link[LINK_BYTES]; // target of the link /proc/self/fd/N
    const char *info;      // contents of /proc/self/fdinfo/N
};

// Refuses the freeze because of this descriptor. `what` says why and what to do, and ends with "descriptor ".
int refuse_descriptor(struct freezing *f, const struct look *look, const char *what);
// Refuses a descriptor of a kind that cannot be frozen; the text names the kind if the engine knows it.
int refuse_unknown(struct freezing *f, const struct look *look);

// freeze_pipes.c: pipe_describe describes one end and, for a reading end, the pipe's contents. pipes_pair then numbers
// the pipes and refuses a pipe with an end outside this process. Both return 0 or a freeze_result.
int pipe_describe(struct freezing *f, struct look *look);
int pipes_pair(struct freezing *f);
// Reserves scratch memory for `bytes` bytes of the descriptor's contents, which the image will hold; NULL when full.
void *contents_room(struct freezing *f, struct look *look, uint64_t bytes);
// Removes the contents of record `index` of SECTION_DESCRIPTORS from what will be stored.
void contents_forget(struct freezing *f, uint32_t index);

// freeze_sockets.c: socket_describe describes one socket. Once all descriptors are known, sockets_settle adds what
// depends on other descriptors. Both return 0 or a freeze_result.
int socket_describe(struct freezing *f, struct look *look);
int sockets_settle(struct freezing *f);

// freeze_rings.c: ring_describe describes an io_uring. rings_settle then checks that every mapping of an io_uring
// belongs to a descriptor. Both return 0 or a freeze_result.
int ring_describe(struct freezing *f, struct look *look);
int rings_settle(struct freezing *f);

// freeze_event_descriptors.c: describes an eventfd, epoll, timerfd, signalfd or inotify descriptor. Returns 0 or a
// freeze_result, or 1 for a descriptor of another kind.
int event_describe(struct freezing *f, struct look *look);

#endif
