// Runs in thaw's address space. Lets the clocks that count from the machine's start go on from the freeze.
//
// CLOCK_MONOTONIC and CLOCK_BOOTTIME begin at 0 when a machine starts, so after a restart, or on another machine, they
// may be behind the values that the frozen process remembers. Then this process enters a time namespace, in which they
// are ahead by what is missing. Its threads, and the processes that it starts, stay in that namespace. setns(2) moves
// the calling process itself, so that the copy is the process that the caller started.
//
// Source: time_namespaces(7), setns(2).

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <time.h>

#include "disk_parts.h"
#include "thaw.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#define SECOND_NS INT64_C(1000000000)
#define TICK_NS INT64_C(10000000) // the longest of a kernel, with HZ=100

struct capabilities {
    struct __user_cap_header_struct header;
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
};

// The offset of one clock in this namespace, nanoseconds.
static int64_t offset_in(const char *offsets, const char *clock) {
    const char *at = find_line(offsets, clock);
    if (!at)
        return 0;
    skip_spaces(&at);
    int negative = *at == '-';
    at += negative;
    int64_t seconds = (int64_t)take_number(&at, 10);
    skip_spaces(&at);
    return (negative ? -seconds : seconds) * SECOND_NS + (int64_t)take_number(&at, 10);
}

static void put_offset(struct writer *out, int clock, int64_t offset_ns) {
    int64_t seconds = offset_ns / SECOND_NS, rest_ns = offset_ns % SECOND_NS;
    if (rest_ns < 0) {
        rest_ns += SECOND_NS;
        seconds--;
    }
    put_number(out, (uint64_t)clock, 10);
    put_text(out, seconds < 0 ? " -" : " ");
    put_number(out, (uint64_t)(seconds < 0 ? -seconds : seconds), 10);
    put_text(out, " ");
    put_number(out, (uint64_t)rest_ns, 10);
    put_text(out, "\n");
}

// Sets the offsets of the new namespace, and enters it. A new namespace begins with the offsets of this one.
static long set_and_enter(int64_t monotonic_ns, int64_t boottime_ns) {
    char offsets[256], wanted[128];
    long result = read_text_file("/proc/self/timens_offsets", offsets, sizeof offsets);
    if (result < 0)
        return result;
    struct writer out = text_writer(wanted, sizeof wanted);
    put_offset(&out, CLOCK_MONOTONIC, offset_in(offsets, "monotonic") + monotonic_ns);
    put_offset(&out, CLOCK_BOOTTIME, offset_in(offsets, "boottime") + boottime_ns);
    result = disk_write_text("/proc/self/timens_offsets", wanted);
    if (result < 0)
        return result;
    int fd = sys_open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    result = sys3(SYS_setns, fd, CLONE_NEWTIME, 0);
    sys_close(fd);
    return result;
}

// Without the right to make a time namespace, makes it in a new user namespace, in which user and group stay the same.
// Afterwards the process has the same capabilities as before. Sets `*is_changed` once the process is in that namespace.
static long enter_with_user(int64_t monotonic_ns, int64_t boottime_ns, int *is_changed) {
    struct disk_failure failure;
    struct capabilities before = {.header.version = _LINUX_CAPABILITY_VERSION_3};
    uint64_t user = (uint64_t)sys3(SYS_geteuid, 0, 0, 0), group = (uint64_t)sys3(SYS_getegid, 0, 0, 0);
    long result = sys3(SYS_capget, (long)&before.header, (long)before.sets, 0);
    if (!result)
        result = sys3(SYS_unshare, CLONE_NEWUSER | CLONE_NEWTIME, 0, 0);
    if (result)
        return result;
    *is_changed = 1;
    result = disk_map_ids(user, group, &failure);
    if (!result)
        result = set_and_enter(monotonic_ns, boottime_ns);
    return result ? result : sys3(SYS_capset, (long)&before.header, (long)before.sets, 0);
}

static long enter(struct thaw *t, int64_t monotonic_ns, int64_t boottime_ns, int *is_changed) {
    long result = sys3(SYS_unshare, CLONE_NEWTIME, 0, 0);
    if (!result)
        result = set_and_enter(monotonic_ns, boottime_ns);
    if (result != -EPERM && result != -EACCES)
        return result;
    rights_become_groups(t); // in a user namespace, groups cannot be compared or dropped any more
    return enter_with_user(monotonic_ns, boottime_ns, is_changed);
}

static int64_t behind_ns(uint64_t frozen_ns, int clock) {
    uint64_t now_ns = clock_ns(clock);
    return now_ns < frozen_ns ? (int64_t)(frozen_ns - now_ns) : 0;
}

void clocks_go_on(struct thaw *t) {
    const struct process_facts *process = &t->header->process;
    int64_t monotonic_ns = behind_ns(process->monotonic_ns, CLOCK_MONOTONIC);
    int64_t boottime_ns = behind_ns(process->boottime_ns, CLOCK_BOOTTIME);
    // This clock has the same offset, but another rate.
    int64_t raw_ns = behind_ns(process->raw_ns, CLOCK_MONOTONIC_RAW);
    monotonic_ns = raw_ns > monotonic_ns ? raw_ns : monotonic_ns;
    // Both are ahead by a tick, by which the coarse clocks may be behind.
    monotonic_ns += monotonic_ns ? TICK_NS : 0;
    boottime_ns += boottime_ns ? TICK_NS : 0;
    if (!monotonic_ns && !boottime_ns)
        return;
    if (t->header->flags & IMAGE_INSIDE_VDSO && t->clocks_back)
        return;
    if (t->header->flags & IMAGE_INSIDE_VDSO)
        thaw_refuse(
            "a thread was frozen inside the vDSO, and in a time namespace, which the clocks would need, it reads "
            "other data; let threads that read clocks all the time rest during the freeze",
            "");
    int is_changed = 0, death_signal = 0; // saved, because a change of capabilities clears it
    sys_prctl(PR_GET_PDEATHSIG, (long)&death_signal, 0, 0, 0);
    long result = enter(t, monotonic_ns, boottime_ns, &is_changed);
    if (death_signal)
        sys_prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0);
    if (result < 0 && t->clocks_back && !is_changed)
        return;
    if (result < 0)
        thaw_refuse(result == -ENOSPC || result == -EINVAL
                        ? "the clocks that count from the machine's start are behind their values at the freeze, and "
                          "this kernel has no time namespace left in which they would go on (CONFIG_TIME_NS, sysctl "
                          "user.max_time_namespaces, user.max_user_namespaces)"
                        : "the clocks that count from the machine's start are behind their values at the freeze, and "
                          "this user may not make a time namespace, in which they would go on; allow user namespaces "
                          "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns, "
                          "kernel.unprivileged_userns_clone; in a container its seccomp profile)",
                    "");
    t->started_ns += (uint64_t)monotonic_ns; // it was read outside of the namespace
}
