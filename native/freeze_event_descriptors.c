// Runs in the process that is frozen. Describes descriptors for events within the process: eventfd, epoll, timerfd,
// signalfd, inotify. Their state is read from /proc/self/fdinfo.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>

#include "descriptors.h"
#include "sys.h"

#define NANOSECONDS UINT64_C(1000000000)

// Reads the hexadecimal field `name` in a line of fdinfo, and moves `*at` to the end of its value.
static uint64_t take_field(const char **at, const char *name) {
    while (**at && **at != '\n' && !text_begins(*at, name))
        ++*at;
    if (!text_begins(*at, name))
        return 0;
    *at += text_bytes(name);
    skip_spaces(at);
    return take_number(at, 16);
}

// Whether epoll set `epoll` watches, under this number, a file other than the one that now has the number. All
// eventfds, timers, signalfds and epoll sets have one inode, so only kcmp(2) can tell them apart. Many containers deny
// that call. Then two watches of one number fail in thaw (EEXIST), and a single one is taken for a watch of the file
// that has the number now.
static int watches_another(struct freezing *f, int epoll, int number) {
    struct kcmp_epoll_slot first = {.efd = (uint32_t)epoll, .tfd = (uint32_t)number, .toff = 0}, second = first;
    second.toff = 1;
    return sys6(SYS_kcmp, f->pid, f->pid, KCMP_EPOLL_TFD, number, (long)&first, 0) > 0 ||
           sys6(SYS_kcmp, f->pid, f->pid, KCMP_EPOLL_TFD, number, (long)&second, 0) >= 0;
}

// Source: fs/eventpoll.c, "tfd: N events: X data: X pos:N ino:X sdev:X".
static int describe_epoll(struct freezing *f, struct look *look) {
    look->to->kind = DESCRIPTOR_EPOLL;
    for (const char *at = look->info; (at = find_line(at, "tfd:"));) {
        struct epoll_watch *watch = table_add(&f->sections[SECTION_EPOLL]);
        if (!watch)
            return refuse(f, "descriptors",
                          "epoll watches more descriptors than an image can hold; close some before the freeze", "");
        skip_spaces(&at);
        *watch = (struct epoll_watch){.epoll = look->to->number, .number = (int32_t)take_number(&at, 10)};
        watch->events = (uint32_t)take_field(&at, "events:");
        watch->data = take_field(&at, "data:");
        uint64_t inode = take_field(&at, "ino:");
        // The watched descriptor may have been closed or reused since, while a duplicate keeps the watched file open.
        struct stat status;
        int other = sys3(SYS_fstat, watch->number, (long)&status, 0) < 0 || status.st_ino != inode;
        if (!other && status.st_ino == look->status.st_ino && status.st_dev == look->status.st_dev)
            other = watches_another(f, watch->epoll, watch->number);
        if (other)
            return refuse_descriptor(f, look,
                                     "epoll watches a file whose descriptor was closed; remove the watch before the "
                                     "freeze: descriptor ");
    }
    return 0;
}

static int describe_eventfd(struct look *look) {
    look->to->kind = DESCRIPTOR_EVENTFD;
    const char *at = find_line(look->info, "eventfd-count:");
    if (at) {
        skip_spaces(&at);
        look->to->value = take_number(&at, 16);
    }
    at = find_line(look->info, "eventfd-semaphore:");
    if (at) {
        skip_spaces(&at);
        look->to->index = *at == '1';
    }
    return 0;
}

// Reads a pair of numbers, "(seconds, nanoseconds)", after `name`; returns nanoseconds.
static uint64_t take_time(const char *info, const char *name) {
    const char *at = find_line(info, name);
    while (at && *at && *at != '(')
        at++;
    if (!at || !*at++)
        return 0;
    uint64_t seconds = take_number(&at, 10);
    while (*at == ',' || *at == ' ')
        at++;
    return seconds * NANOSECONDS + take_number(&at, 10);
}

static uint64_t take_line(const char *info, const char *name, unsigned base) {
    const char *at = find_line(info, name);
    if (!at)
        return 0;
    skip_spaces(&at);
    return take_number(&at, base);
}

// In a copy, a timer expires when its clock shows the same time as at the original's expiry. If it expired before the
// freeze and was not read, it expires again in the copy.
// Source: fs/timerfd.c, timerfd_show.
static int describe_timer(struct look *look) {
    struct timespec now = {0, 0};
    uint64_t clock = take_line(look->info, "clockid:", 10), left_ns = take_time(look->info, "it_value:");
    sys3(SYS_clock_gettime, (long)clock, (long)&now, 0);
    look->to->kind = DESCRIPTOR_TIMER;
    look->to->index = (uint32_t)clock;
    if (take_line(look->info, "settime flags:", 8) & TFD_TIMER_CANCEL_ON_SET)
        look->to->index |= TIMER_CANCELLED_BY_SET;
    look->to->value = take_time(look->info, "it_interval:");
    if (take_line(look->info, "ticks:", 10))
        look->to->position = 1;
    else if (left_ns)
        look->to->position = (uint64_t)now.tv_sec * NANOSECONDS + (uint64_t)now.tv_nsec + left_ns;
    return 0;
}

int event_describe(struct freezing *f, struct look *look) {
    if (text_equal(look->link, "anon_inode:[eventpoll]"))
        return describe_epoll(f, look);
    if (text_begins(look->link, "anon_inode:[eventfd"))
        return describe_eventfd(look);
    if (text_equal(look->link, "anon_inode:[timerfd]"))
        return describe_timer(look);
    if (text_equal(look->link, "anon_inode:[signalfd]")) {
        look->to->kind = DESCRIPTOR_SIGNALS;
        look->to->value = take_line(look->info, "sigmask:", 16);
        return 0;
    }
    if (text_equal(look->link, "anon_inode:inotify")) {
        // The kernel shows a watch's inode, but not its path, which a copy would need to watch the same file.
        if (find_line(look->info, "inotify wd:"))
            return refuse_descriptor(
                f, look, "an inotify watch cannot be frozen; stop watching files before the freeze: descriptor ");
        look->to->kind = DESCRIPTOR_INOTIFY;
        return 0;
    }
    return 1;
}
