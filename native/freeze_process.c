// Runs in the process that is frozen. Describes state other than memory, threads and descriptors; refuses what cannot
// be restored.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/time.h>
#include <time.h>

#include "freeze_parts.h"
#include "sys.h"

static int refuse_timers(struct freezing *f) {
    for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++) {
        struct itimerval left = {0};
        sys3(SYS_getitimer, which, (long)&left, 0);
        if (left.it_value.tv_sec || left.it_value.tv_usec)
            return refuse(f, "process",
                          "an interval timer is running (alarm, setitimer, a sampling profiler); stop it before the "
                          "freeze",
                          "");
    }
    char timers[64];
    if (read_text_file("/proc/self/timers", timers, sizeof timers) > 0)
        return refuse(f, "process", "a POSIX timer exists (timer_create); delete it before the freeze", "");
    return 0;
}

static int is_dead(uint64_t pid) {
    char path[64], stat[512];
    struct writer out = text_writer(path, sizeof path);
    put_text(&out, "/proc/");
    put_number(&out, pid, 10);
    put_text(&out, "/stat");
    if (read_text_file(path, stat, sizeof stat) <= 0)
        return 1;
    const char *at = stat + text_bytes(stat);
    while (at > stat && *at != ')')
        at--;
    return at[0] == ')' && (at[2] == 'Z' || at[2] == 'X');
}

// Refuses blocked signals that are pending. They would be lost, because the kernel does not show the data that was sent
// with them.
static int refuse_pending(struct freezing *f) {
    const struct table *threads = &f->sections[SECTION_THREADS];
    for (uint32_t i = 0; i < threads->count; i++) {
        static const char *const names[] = {"SigPnd:", "ShdPnd:"};
        char path[64], *status = (char *)f->text.base;
        struct writer out = text_writer(path, sizeof path);
        put_text(&out, "/proc/self/task/");
        put_number(&out, (unsigned)AT(*threads, struct thread_state, i)->tid, 10);
        put_text(&out, "/status");
        if (read_text_file(path, status, 65536) <= 0)
            continue;
        for (int which = 0; which < 2; which++) {
            const char *at = find_line(status, names[which]);
            if (!at)
                continue;
            skip_spaces(&at);
            uint64_t pending = take_number(&at, 16) & ~(UINT64_C(1) << 32); // without signal 33, which freeze uses
            char number[24];
            out = text_writer(number, sizeof number);
            put_number(&out, (uint64_t)__builtin_ctzll(pending | UINT64_C(1) << 63) + 1, 10);
            if (pending)
                return refuse(f, "process", "a blocked signal is pending; receive it before the freeze: signal ",
                              number);
        }
    }
    return 0;
}

// Refuses child processes. They belong to the original; a copy would wait for processes that are not its children.
static int refuse_children(struct freezing *f) {
    const struct table *threads = &f->sections[SECTION_THREADS];
    for (uint32_t i = 0; i < threads->count; i++) {
        char path[64], *children = (char *)f->text.base;
        struct writer out = text_writer(path, sizeof path);
        put_text(&out, "/proc/self/task/");
        put_number(&out, (unsigned)AT(*threads, struct thread_state, i)->tid, 10);
        put_text(&out, "/children");
        if (read_text_file(path, children, 65536) <= 0)
            continue;
        for (const char *at = children; *at;) {
            const char *name = at;
            uint64_t pid = take_number(&at, 10);
            if (pid && !is_dead(pid)) {
                children[at - children] = 0;
                return refuse(
                    f, "process",
                    "the process has a child process, which no copy would have; end it before the freeze: process ",
                    name);
            }
            while (*at == ' ' || *at == '\n')
                at++;
        }
    }
    return 0;
}

static int read_stat(struct freezing *f) {
    char stat[2048];
    long bytes = read_text_file("/proc/self/stat", stat, sizeof stat);
    if (bytes <= 0)
        return fail(f, "process", bytes ? bytes : -EIO, "/proc/self/stat cannot be read");
    uint64_t fields[64] = {0};
    const char *at = stat + bytes;
    while (at > stat && *at != ')')
        at--;
    at += 2; // field 3, the process's state
    for (int field = 3; field < 64 && *at; field++) {
        if (*at == '-')
            at++;
        fields[field] = take_number(&at, 10);
        while (*at && *at != ' ')
            at++;
        skip_spaces(&at);
    }
    struct process_facts *process = &f->process;
    process->code_start = fields[26];
    process->code_end = fields[27];
    process->stack_start = fields[28];
    process->data_start = fields[45];
    process->data_end = fields[46];
    process->brk_start = fields[47];
    process->brk_end = (uint64_t)sys3(SYS_brk, 0, 0, 0);
    process->arguments_start = fields[48];
    process->arguments_end = fields[49];
    process->environment_start = fields[50];
    process->environment_end = fields[51];
    return 0;
}

static int note_folder(struct freezing *f) {
    char path[4096];
    long bytes = sys3(SYS_getcwd, (long)path, sizeof path, 0);
    if (bytes < 0 || path[0] != '/')
        return refuse(f, "process",
                      "the working folder has been removed; change to a folder that exists before the freeze", "");
    f->process.working_folder = add_string(f, path);
    f->process.umask = (uint32_t)sys3(SYS_umask, 0, 0, 0);
    sys3(SYS_umask, f->process.umask, 0, 0);
    return f->process.working_folder == NO_INDEX
               ? refuse(f, "process",
                        "paths and names take more space than an image can hold; map and open fewer files", "")
               : 0;
}

static int note_signals(struct freezing *f) {
    for (int signal = 1; signal <= 64; signal++) {
        struct signal_action *action = table_add(&f->sections[SECTION_SIGNALS]);
        sys6(SYS_rt_sigaction, signal, 0, (long)action, 8, 0, 0);
        park_replaced_action(signal, action);
    }
    return 0;
}

static void note_vdso(struct freezing *f) {
    struct process_facts *process = &f->process;
    struct table *section = &f->sections[SECTION_VDSO];
    copy_bytes(section->base, (const void *)process->vdso_start, process->vdso_bytes);
    section->count = (uint32_t)process->vdso_bytes;
    process->vdso_hash = checksum(section->base, process->vdso_bytes);
}

int process_describe(struct freezing *f) {
    int result = refuse_timers(f);
    if (!result)
        result = refuse_pending(f);
    if (!result)
        result = refuse_children(f);
    if (!result)
        result = read_stat(f);
    if (!result)
        result = note_folder(f);
    if (!result)
        result = note_signals(f);
    if (!result)
        result = rights_describe(f);
    if (result)
        return result;
    if (f->process.vdso_bytes > f->sections[SECTION_VDSO].capacity_bytes)
        return refuse(f, "process", "the vDSO is larger than expected", "");
    note_vdso(f);
    f->process.frozen_unix_ns = clock_ns(CLOCK_REALTIME);
    f->process.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    f->process.boottime_ns = clock_ns(CLOCK_BOOTTIME);
    f->process.raw_ns = clock_ns(CLOCK_MONOTONIC_RAW);
    f->process.register_permissions = register_permissions();
    clocks_note(f);
    f->process.landing = (uint64_t)&thawd_landing;
    f->process.parcel = f->parcel;
    return fault_point(f, "process");
}
