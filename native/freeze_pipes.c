// Runs in the process that is frozen. Describes pipes within the process, and copies their contents.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <time.h>

#include "descriptors.h"
#include "sys.h"

void *contents_room(struct freezing *f, struct look *look, uint64_t bytes) {
    uint64_t room = (bytes + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
    uint32_t index = (uint32_t)(look->to - AT(f->sections[SECTION_DESCRIPTORS], struct descriptor, 0));
    struct pipe_contents *contents = room < f->text.capacity_bytes / 2 ? table_add(&f->pipes) : 0;
    if (!contents)
        return 0;
    // The contents are kept at the end of the scratch area for texts, which becomes shorter.
    f->text.capacity_bytes -= room;
    *contents = (struct pipe_contents){f->text.base + f->text.capacity_bytes, bytes, index};
    look->to->data_bytes = (uint32_t)bytes;
    return f->text.base + f->text.capacity_bytes;
}

void contents_forget(struct freezing *f, uint32_t index) {
    for (uint32_t i = 0; i < f->pipes.count; i++)
        if (AT(f->pipes, struct pipe_contents, i)->descriptor == index)
            AT(f->pipes, struct pipe_contents, i)->bytes = 0;
}

// Copies the pipe's contents for the image by tee(2), which leaves them in the pipe.
static int keep_contents(struct freezing *f, struct look *look, int bytes) {
    int ends[2];
    void *to = contents_room(f, look, (uint64_t)bytes);
    if (!to)
        return refuse_descriptor(f, look, "a pipe holds too much data; read it before the freeze: descriptor ");
    long result = sys3(SYS_pipe2, (long)ends, O_CLOEXEC, 0);
    if (SYS_FAILED(result))
        return fail(f, "descriptors", result, "no descriptor is left to copy a pipe's contents");
    sys_fcntl(ends[1], F_SETPIPE_SZ, (long)look->to->value);
    result = sys6(SYS_tee, look->to->number, ends[1], bytes, 2 /* SPLICE_F_NONBLOCK */, 0, 0);
    if (!SYS_FAILED(result))
        result = sys_read(ends[0], to, (uint64_t)bytes);
    sys_close(ends[0]);
    sys_close(ends[1]);
    if (result != bytes)
        return fail(f, "descriptors", SYS_FAILED(result) ? result : -EIO, "a pipe's contents cannot be copied");
    return 0;
}

// Whether an earlier record is a reading end of the same pipe. The pipe's contents are stored only once.
static int is_opened_again(struct freezing *f, const struct descriptor *end) {
    const struct descriptor *first = AT(f->sections[SECTION_DESCRIPTORS], struct descriptor, 0);
    for (const struct descriptor *other = first; other < end; other++)
        if (other->kind == DESCRIPTOR_PIPE_READ && other->position == end->position)
            return 1;
    return 0;
}

int pipe_describe(struct freezing *f, struct look *look) {
    struct descriptor *to = look->to;
    if (text_begins(look->link, "/"))
        return refuse_descriptor(f, look,
                                 "a named pipe connects to other processes; close it before the freeze: descriptor ");
    if ((to->open_flags & O_ACCMODE) == O_RDWR)
        return refuse_unknown(f, look);
    to->kind = (to->open_flags & O_ACCMODE) == O_RDONLY ? DESCRIPTOR_PIPE_READ : DESCRIPTOR_PIPE_WRITE;
    to->position = look->status.st_ino; // identifies the pipe until `pipes_pair` has numbered all pipes
    to->value = (uint64_t)sys_fcntl(to->number, F_GETPIPE_SZ, 0);
    int bytes = 0;
    if (to->kind == DESCRIPTOR_PIPE_READ && !is_opened_again(f, to))
        sys_ioctl(to->number, FIONREAD, &bytes);
    return bytes > 0 ? keep_contents(f, look, bytes) : 0;
}

// Whether no process holds the other end of the pipe. Such a pipe can be frozen, since no other process shares it.
static int other_end_is_closed(const struct descriptor *end) {
    struct pollfd poll = {.fd = end->number, .events = 0};
    const struct timespec now = {0, 0};
    sys6(SYS_ppoll, (long)&poll, 1, (long)&now, 0, 8, 0);
    return (poll.revents & (POLLHUP | POLLERR)) != 0;
}

// Numbers the pipes. Refuses a pipe with an end in another process.
int pipes_pair(struct freezing *f) {
    struct table *table = &f->sections[SECTION_DESCRIPTORS];
    uint32_t pipes = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        struct descriptor *one = AT(*table, struct descriptor, i);
        if ((one->kind != DESCRIPTOR_PIPE_READ && one->kind != DESCRIPTOR_PIPE_WRITE) || !one->position)
            continue;
        uint64_t inode = one->position;
        uint32_t kinds = 0;
        for (uint32_t j = i; j < table->count; j++) {
            struct descriptor *end = AT(*table, struct descriptor, j);
            if ((end->kind != DESCRIPTOR_PIPE_READ && end->kind != DESCRIPTOR_PIPE_WRITE) || end->position != inode)
                continue;
            kinds |= 1u << end->kind;
            end->position = 0;
            end->index = pipes;
        }
        pipes++;
        struct look look = {.to = one, .link = "pipe"};
        if (kinds != (1u << DESCRIPTOR_PIPE_READ | 1u << DESCRIPTOR_PIPE_WRITE) && !other_end_is_closed(one))
            return refuse_descriptor(
                f, &look, "the other end of a pipe is outside the process; close it before the freeze: descriptor ");
    }
    return 0;
}
