// Runs in thaw's address space. Puts the descriptors that the caller passed in their places, and makes all others
// again. No thread of the copy runs yet.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>

#include "thaw.h"

#define MAX_OBJECTS 4096
#define F_ADD_SEALS_COMMAND 1033

static int object_fds[MAX_OBJECTS]; // for each memory object its descriptor's number + 1; 0: not made yet

int keep_aside(struct thaw *t, int fd) {
    long aside = sys_fcntl(fd, F_DUPFD_CLOEXEC, t->spare_fd);
    if (SYS_FAILED(aside))
        thaw_fail("no descriptor is left; raise the limit of open files (ulimit -n)", "", aside);
    sys_close(fd);
    return (int)aside;
}

static void fill(struct thaw *t, int fd, uint64_t offset, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        uint64_t at = offset + done;
        long got = sys6(SYS_sendfile, fd, t->image_fd, (long)&at, (long)(bytes - done), 0, 0);
        if (got <= 0)
            thaw_fail("shared memory cannot be filled from the image", "", got ? got : -EIO);
        done += (uint64_t)got;
    }
}

int object_descriptor(struct thaw *t, uint32_t index) {
    const struct memory_object *object = SECTION(t, struct memory_object, SECTION_OBJECTS) + index;
    if (index >= MAX_OBJECTS)
        thaw_fail("there are too many shared memory objects", "", E2BIG);
    if (object_fds[index])
        return object_fds[index] - 1;
    const char *name = string_at(t, object->name);
    if (text_begins(name, "/memfd:"))
        name += 7;
    if (text_bytes(name) > 200)
        name += text_bytes(name) - 200;
    long fd = sys3(SYS_memfd_create, (long)name, 3 /* MFD_CLOEXEC | MFD_ALLOW_SEALING */, 0);
    if (SYS_FAILED(fd))
        thaw_fail("shared memory cannot be made (memfd_create)", "", fd);
    long result = sys3(SYS_ftruncate, fd, (long)object->bytes, 0);
    if (SYS_FAILED(result))
        thaw_fail("shared memory cannot be made (ftruncate)", "", result);
    fill(t, (int)fd, object->offset, object->bytes);
    sys3(SYS_lseek, fd, 0, 0);
    int aside = keep_aside(t, (int)fd);
    object_fds[index] = aside + 1;
    return aside;
}

static void seal_objects(struct thaw *t) {
    for (uint32_t i = 0; i < COUNT(t, SECTION_OBJECTS) && i < MAX_OBJECTS; i++) {
        uint32_t seals = SECTION(t, struct memory_object, SECTION_OBJECTS)[i].seals;
        if (object_fds[i] && seals)
            sys_fcntl(object_fds[i] - 1, F_ADD_SEALS_COMMAND, seals);
    }
}

_Noreturn void fail_descriptor(const struct descriptor *descriptor, const char *what, long error) {
    char number[24];
    struct writer out = text_writer(number, sizeof number);
    put_number(&out, (unsigned)descriptor->number, 10);
    thaw_fail(what, number, error);
}

static int open_file(struct thaw *t, const struct descriptor *descriptor) {
    const struct file_identity *file = SECTION(t, struct file_identity, SECTION_FILES) + descriptor->index;
    const char *path = string_at(t, file->path);
    if (text_begins(path, "/proc/")) { // a file about the frozen process itself is replaced by one about this process
        static char own[4200];
        const char *rest = path + 6;
        uint64_t pid = take_number(&rest, 10);
        if (pid) {
            struct writer out = text_writer(own, sizeof own);
            put_text(&out, "/proc/self");
            put_text(&out, rest);
            path = own;
        }
    }
    int flags = (int)descriptor->open_flags & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY);
    int fd = sys_open(path, flags | O_CLOEXEC, 0);
    struct stat status;
    if (fd < 0)
        thaw_refuse("a file that was open is gone or cannot be opened: ", path);
    sys3(SYS_fstat, fd, (long)&status, 0);
    int other = status.st_ino != file->inode && !is_own_file(t, path);
    if (other && !text_begins(path, "/proc/") && !text_begins(path, "/sys/"))
        thaw_refuse("a file that was open has been replaced: ", path);
    if (descriptor->kind == DESCRIPTOR_FILE && descriptor->position)
        sys3(SYS_lseek, fd, (long)descriptor->position, 0);
    return fd;
}

// Opens the file of `fd` again through /proc. The result is a separate open file with the descriptor's flags.
static int open_anew(int fd, const struct descriptor *descriptor) {
    char path[64];
    struct writer out = text_writer(path, sizeof path);
    put_text(&out, "/proc/self/fd/");
    put_number(&out, (unsigned)fd, 10);
    // O_NOFOLLOW, which Python's TemporaryFile sets, would refuse the link in /proc.
    int unwanted = O_CREAT | O_EXCL | O_TRUNC | 020000000 /* __O_TMPFILE */ | O_DIRECTORY | O_NOFOLLOW;
    return sys_open(path, ((int)descriptor->open_flags & ~unwanted) | O_CLOEXEC, 0);
}

// The object's mappings share one open file; a descriptor needs its own position and flags.
static int open_object(struct thaw *t, const struct descriptor *descriptor) {
    int fd = open_anew(object_descriptor(t, descriptor->index), descriptor);
    if (fd < 0)
        fail_descriptor(descriptor, "a deleted file cannot be opened again for descriptor ", fd);
    sys3(SYS_lseek, fd, (long)descriptor->position, 0);
    return fd;
}

static int make_eventfd(const struct descriptor *descriptor) {
    int flags =
        (int)(descriptor->open_flags & O_NONBLOCK) | O_CLOEXEC | (descriptor->index ? 1 /* EFD_SEMAPHORE */ : 0);
    long fd = sys3(SYS_eventfd2, 0, flags, 0);
    if (SYS_FAILED(fd))
        fail_descriptor(descriptor, "an eventfd cannot be made for descriptor ", fd);
    if (descriptor->value)
        sys_write((int)fd, &descriptor->value, sizeof descriptor->value);
    return (int)fd;
}

static struct timespec time_of(uint64_t nanoseconds) {
    return (struct timespec){(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};
}

// Makes a timer that expires at the same time as the original would have. If that time has passed, it expires now.
static int make_timer(const struct descriptor *descriptor) {
    uint32_t clock = descriptor->index & ~(uint32_t)TIMER_CANCELLED_BY_SET;
    long fd = sys3(SYS_timerfd_create, clock, (int)(descriptor->open_flags & O_NONBLOCK) | O_CLOEXEC, 0);
    if (SYS_FAILED(fd) || !descriptor->position)
        return (int)fd;
    struct timespec now = {0, 0};
    sys3(SYS_clock_gettime, clock, (long)&now, 0);
    int is_over = descriptor->position <= (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    struct itimerspec when = {.it_value = time_of(is_over ? 1 : descriptor->position),
                              .it_interval = time_of(descriptor->value)};
    int flags = is_over ? 0 : TFD_TIMER_ABSTIME;
    if (!is_over && descriptor->index & TIMER_CANCELLED_BY_SET)
        flags |= TFD_TIMER_CANCEL_ON_SET;
    long result = sys6(SYS_timerfd_settime, fd, flags, (long)&when, 0, 0, 0);
    if (SYS_FAILED(result))
        fail_descriptor(descriptor, "a timer cannot be set: descriptor ", result);
    return (int)fd;
}

void put_in_place(const struct descriptor *descriptor, int fd) {
    long result = sys3(SYS_dup3, fd, descriptor->number, descriptor->close_on_exec ? O_CLOEXEC : 0);
    if (SYS_FAILED(result))
        fail_descriptor(descriptor, "a descriptor cannot be put in its place: ", result);
}

void fill_channel(struct thaw *t, const struct descriptor *descriptor, int write_end) {
    for (uint64_t done = 0; done < descriptor->data_bytes;) {
        static char piece[4096];
        uint64_t left = descriptor->data_bytes - done;
        long got =
            sys_pread(t->image_fd, piece, left < sizeof piece ? left : sizeof piece, descriptor->data_offset + done);
        if (got > 0)
            got = sys_write(write_end, piece, (uint64_t)got);
        if (got <= 0)
            fail_descriptor(descriptor, "a pipe or a pair of sockets cannot be filled: descriptor ", got);
        done += (uint64_t)got;
    }
}

// Makes all descriptors of one pipe; `first` is the index of the first of them. An end may have been opened several
// times, with different flags.
static void make_pipe(struct thaw *t, uint32_t first) {
    const struct descriptor *all = SECTION(t, struct descriptor, SECTION_DESCRIPTORS);
    int ends[2], taken[2] = {0, 0};
    long result = sys3(SYS_pipe2, (long)ends, O_CLOEXEC, 0);
    if (SYS_FAILED(result))
        fail_descriptor(&all[first], "a pipe cannot be made for descriptor ", result);
    for (int i = 0; i < 2; i++)
        ends[i] = keep_aside(t, ends[i]);
    sys_fcntl(ends[1], F_SETPIPE_SZ, (long)all[first].value);
    for (uint32_t i = first; i < COUNT(t, SECTION_DESCRIPTORS); i++) {
        int writes = all[i].kind == DESCRIPTOR_PIPE_WRITE;
        if (all[i].index != all[first].index || (!writes && all[i].kind != DESCRIPTOR_PIPE_READ))
            continue;
        if (!writes)
            fill_channel(t, &all[i], ends[1]);
        if (taken[writes]++) {
            int again = open_anew(ends[writes], &all[i]);
            if (again < 0)
                fail_descriptor(&all[i], "a pipe cannot be opened again for descriptor ", again);
            again = keep_aside(t, again);
            put_in_place(&all[i], again);
            sys_close(again);
            continue;
        }
        sys_fcntl(ends[writes], F_SETFL, all[i].open_flags & (O_NONBLOCK | O_DIRECT));
        put_in_place(&all[i], ends[writes]);
    }
    sys_close(ends[0]);
    sys_close(ends[1]);
}

static int provided_from(struct thaw *t, int number) {
    for (uint32_t i = 0; i < t->provided_count; i++)
        if (t->provided[i].number == number)
            return t->provided[i].from;
    return -1;
}

static void make_one(struct thaw *t, uint32_t index) {
    const struct descriptor *all = SECTION(t, struct descriptor, SECTION_DESCRIPTORS), *descriptor = &all[index];
    int fd = -1;
    switch (descriptor->kind) {
    case DESCRIPTOR_PROVIDED:
        fd = provided_from(t, descriptor->number);
        put_in_place(descriptor, fd);
        sys_close(fd);
        return;
    case DESCRIPTOR_COPY:
        put_in_place(descriptor, all[descriptor->index].number);
        return;
    case DESCRIPTOR_PIPE_READ:
    case DESCRIPTOR_PIPE_WRITE:
        for (uint32_t i = 0; i < index; i++)
            if (all[i].index == descriptor->index &&
                (all[i].kind == DESCRIPTOR_PIPE_READ || all[i].kind == DESCRIPTOR_PIPE_WRITE))
                return; // it was made together with the first descriptor of its pipe
        make_pipe(t, index);
        return;
    case DESCRIPTOR_SOCKETPAIR:
        make_pair(t, descriptor);
        return;
    case DESCRIPTOR_EVENTFD:
        fd = make_eventfd(descriptor);
        break;
    case DESCRIPTOR_EPOLL:
        fd = (int)sys3(SYS_epoll_create1, O_CLOEXEC, 0, 0);
        break;
    case DESCRIPTOR_SOCKET:
        fd = make_socket(t, descriptor);
        break;
    case DESCRIPTOR_RING:
        fd = make_ring(t, descriptor);
        break;
    case DESCRIPTOR_TIMER:
        fd = make_timer(descriptor);
        break;
    case DESCRIPTOR_SIGNALS:
        fd = (int)sys6(SYS_signalfd4, -1, (long)&descriptor->value, sizeof descriptor->value,
                       (int)(descriptor->open_flags & O_NONBLOCK) | O_CLOEXEC, 0, 0);
        break;
    case DESCRIPTOR_INOTIFY:
        fd = (int)sys3(SYS_inotify_init1, (int)(descriptor->open_flags & O_NONBLOCK) | O_CLOEXEC, 0, 0);
        break;
    case DESCRIPTOR_OBJECT:
        fd = open_object(t, descriptor);
        break;
    case DESCRIPTOR_FILE:
    case DESCRIPTOR_DEVICE:
        fd = open_file(t, descriptor);
        break;
    default:
        fail_descriptor(descriptor, "a descriptor of this kind cannot be made: ", EINVAL);
    }
    if (fd < 0)
        fail_descriptor(descriptor, "a descriptor cannot be made: ", fd);
    fd = keep_aside(t, fd);
    put_in_place(descriptor, fd);
    sys_close(fd);
}

_Noreturn static void refuse_missing(int number) {
    char text[24];
    struct writer out = text_writer(text, sizeof text);
    put_number(&out, (unsigned)number, 10);
    thaw_refuse("a descriptor was not passed (--fd OLD=NEW): ", text);
}

// Moves the passed descriptors that the frozen process expects to numbers that it does not use, and closes all others.
static void take_provided_aside(struct thaw *t) {
    const struct descriptor *all = SECTION(t, struct descriptor, SECTION_DESCRIPTORS);
    for (uint32_t i = 0; i < COUNT(t, SECTION_DESCRIPTORS); i++) {
        if (all[i].kind != DESCRIPTOR_PROVIDED)
            continue;
        int number = all[i].number, from = provided_from(t, number), known = from >= 0;
        long fd = sys_fcntl(known ? from : number, F_DUPFD_CLOEXEC, t->spare_fd);
        if (fd == -EBADF && number <= 2) {
            fd = sys_open("/dev/null", O_RDWR | O_CLOEXEC, 0);
            fd = fd < 0 ? fd : keep_aside(t, (int)fd);
        }
        if (fd == -EBADF)
            refuse_missing(number);
        if (SYS_FAILED(fd))
            fail_descriptor(&all[i],
                            "no descriptor number is left; raise the limit of open files (ulimit -n): descriptor ", fd);
        for (uint32_t k = 0; known && k < t->provided_count; k++)
            if (t->provided[k].number == number)
                t->provided[k].from = (int)fd;
        if (!known) {
            if (t->provided_count == MAX_PROVIDED)
                fail_descriptor(&all[i], "too many descriptors are passed: ", E2BIG);
            t->provided[t->provided_count++] = (struct provided){number, (int)fd};
        }
    }
    long result = sys3(SYS_close_range, 0, t->spare_fd - 1, 0);
    if (SYS_FAILED(result))
        thaw_fail("inherited descriptors cannot be closed (close_range, Linux 5.9)", "", result);
}

// Whether the caller passes the descriptor `number`, or the one whose open file it shares.
static int is_passed(struct thaw *t, int number) {
    const struct descriptor *all = SECTION(t, struct descriptor, SECTION_DESCRIPTORS);
    for (uint32_t i = 0; i < COUNT(t, SECTION_DESCRIPTORS); i++)
        if (all[i].number == number)
            return all[all[i].kind == DESCRIPTOR_COPY ? all[i].index : i].kind == DESCRIPTOR_PROVIDED;
    return 0;
}

// Without one of its watches, the copy might wait forever. So every error is fatal, with one exception: a passed
// descriptor may be of a kind that cannot be watched, such as a regular file (EPERM). The other errors mean that a
// limit was reached (ENOSPC, ENOMEM), that the image is not valid (EBADF, EEXIST, EINVAL), or that the passed
// descriptor is an epoll set that cannot be watched in this way (EINVAL, ELOOP). ENOENT is not an error of
// EPOLL_CTL_ADD. Source: epoll_ctl(2).
static void watch_again(struct thaw *t, const struct epoll_watch *watch) {
    struct epoll_event event = {.events = watch->events, .data.u64 = watch->data};
    long result = sys6(SYS_epoll_ctl, watch->epoll, EPOLL_CTL_ADD, watch->number, (long)&event, 0, 0);
    if (!SYS_FAILED(result) || (result == -EPERM && is_passed(t, watch->number)))
        return;
    if (result == -ENOSPC || result == -ENOMEM)
        thaw_fail("an epoll set cannot be filled (fs.epoll.max_user_watches, memory)", "", result);
    char number[24];
    struct writer out = text_writer(number, sizeof number);
    put_number(&out, (unsigned)watch->number, 10);
    thaw_fail("an epoll set cannot watch a descriptor again: ", number, result);
}

void stage_descriptors(struct thaw *t) {
    take_provided_aside(t);
    for (uint32_t i = 0; i < COUNT(t, SECTION_DESCRIPTORS); i++)
        make_one(t, i);
    const struct epoll_watch *watches = SECTION(t, struct epoll_watch, SECTION_EPOLL);
    for (uint32_t i = 0; i < COUNT(t, SECTION_EPOLL); i++)
        watch_again(t, &watches[i]);
    seal_objects(t);
    // The image stays mapped. No descriptor of thaw's own stays open.
    sys3(SYS_close_range, t->spare_fd, (long)UINT32_MAX, 0);
}
