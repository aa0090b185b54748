// Runs in the process that is frozen. Describes the rights of the process: its users, capabilities, filters and limits.
// No copy may have more rights. Refuses rights that a copy could not have.
//
// Source: credentials(7), capabilities(7), prctl(2), seccomp(2), proc_pid_status(5).

#define _GNU_SOURCE
#include <errno.h>
#include <linux/prctl.h>
#include <sys/resource.h>

#include "drop_capabilities.h"
#include "freeze_parts.h"
#include "sys.h"

#ifndef PR_GET_MDWE
#define PR_GET_MDWE 66
#endif
#define STATUS_BYTES 65536
#define GROUPS_MOST 65536 // NGROUPS_MAX

// Lines of /proc/PID/status that must be equal for all threads, because in a copy all threads inherit them from the
// first thread.
static const char *const shared[] = {"Uid:",    "Gid:",    "Groups:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:",
                                     "CapInh:", "CapPrm:", "CapEff:", "CapBnd:",     "CapAmb:"};

static int same_line(const char *a, const char *b) {
    if (!a || !b)
        return a == b;
    while (*a == *b && *a && *a != '\n')
        a++, b++;
    return *a == *b;
}

static long read_status(const char *folder, uint64_t id, char *to) {
    char path[64];
    struct writer out = text_writer(path, sizeof path);
    put_text(&out, folder);
    put_number(&out, id, 10);
    put_text(&out, "/status");
    return read_text_file(path, to, STATUS_BYTES);
}

// Refuses the freeze if a line that `shared` names differs between `status`, which describes the thread that called
// freeze, and another thread's status.
static int refuse_differences(struct freezing *f, const char *status) {
    const struct table *threads = &f->sections[SECTION_THREADS];
    char *other = (char *)f->text.base + STATUS_BYTES;
    for (uint32_t i = 0; i < threads->count; i++) {
        const struct thread_state *thread = AT(*threads, struct thread_state, i);
        if (read_status("/proc/self/task/", (unsigned)thread->tid, other) <= 0)
            continue;
        for (unsigned k = 0; k < sizeof shared / sizeof *shared; k++)
            if (!same_line(find_line(status, shared[k]), find_line(other, shared[k])))
                return refuse(
                    f, "process",
                    "threads have different rights (users, capabilities, no_new_privs or seccomp filters), and in a "
                    "copy all threads would have the same; start the thread with other rights after the freeze: "
                    "thread ",
                    thread->name);
    }
    return 0;
}

static uint64_t number_in(const char *status, const char *name, unsigned base) {
    const char *at = find_line(status, name);
    if (!at)
        return 0;
    skip_spaces(&at);
    return take_number(&at, base);
}

// Refuses a process that has added seccomp filters. Filters cannot be read without privilege, so a copy would have only
// those that it is started under.
static int refuse_own_filters(struct freezing *f, const char *status) {
    struct process_facts *process = &f->process;
    char *parents = (char *)f->text.base + STATUS_BYTES;
    int32_t started_with = f->request->seccomp_filters;
    uint64_t parent = number_in(status, "PPid:", 10);
    process->seccomp_filters = (uint32_t)number_in(status, "Seccomp_filters:", 10);
    if (started_with < 0) // unknown: take the parent's current number; the first process of a container has no parent
        started_with = parent && read_status("/proc/", parent, parents) > 0
                           ? (int32_t)number_in(parents, "Seccomp_filters:", 10)
                           : (int32_t)process->seccomp_filters;
    if (process->seccomp_filters <= (uint32_t)started_with)
        return 0;
    return refuse(f, "process",
                  "the process has installed a seccomp filter, which no copy would have; install it on the first "
                  "invocation or in an after-restore hook, or start the process under it",
                  "");
}

static int note_groups(struct freezing *f) {
    char *text = (char *)f->text.base;
    uint32_t *groups = (uint32_t *)(f->text.base + f->text.capacity_bytes / 2);
    struct writer out = text_writer(text, f->text.capacity_bytes / 2);
    if (!in_first_user_namespace()) { // in another namespace, groups have other numbers and cannot be dropped
        f->process.more_groups = add_string(f, "?");
        return 0;
    }
    long count = sys3(SYS_getgroups, GROUPS_MOST, (long)groups, 0);
    for (long i = 0; i < count; i++) {
        put_number(&out, groups[i], 10);
        put_text(&out, " ");
    }
    f->process.more_groups = add_string(f, text);
    return f->process.more_groups == NO_INDEX
               ? refuse(f, "process",
                        "paths and names take more space than an image can hold; map and open fewer files", "")
               : 0;
}

static uint32_t setting(int option) {
    long value = sys_prctl(option, 0, 0, 0, 0);
    return value < 0 ? 0 : (uint32_t)value; // below 0: this kernel does not have the setting
}

static void note_settings(struct process_facts *process) {
    int value = 0;
    process->secure_bits = setting(PR_GET_SECUREBITS);
    process->no_privileges = setting(PR_GET_NO_NEW_PRIVS);
    process->dumpable = setting(PR_GET_DUMPABLE);
    process->no_huge_pages = setting(PR_GET_THP_DISABLE);
    process->fixed_code = setting(PR_GET_MDWE);
    if (sys_prctl(PR_GET_CHILD_SUBREAPER, (long)&value, 0, 0, 0) == 0)
        process->subreaper = (uint32_t)value;
    value = 0;
    if (sys_prctl(PR_GET_PDEATHSIG, (long)&value, 0, 0, 0) == 0)
        process->death_signal = (uint32_t)value;
    long personality = sys3(SYS_personality, 0xffffffff, 0, 0);
    process->personality = personality < 0 ? 0 : (uint32_t)personality;
    for (int resource = 0; resource < RLIM_NLIMITS; resource++)
        sys6(SYS_prlimit64, 0, resource, 0, (long)&process->limits[2 * resource], 0, 0);
}

int rights_describe(struct freezing *f) {
    struct process_facts *process = &f->process;
    char *status = (char *)f->text.base;
    long bytes = read_status("/proc/self/task/", (unsigned)f->writer_tid, status);
    if (bytes <= 0)
        return fail(f, "process", bytes ? bytes : -EIO, "/proc/self/task/ID/status cannot be read");
    int result = refuse_differences(f, status);
    if (!result)
        result = refuse_own_filters(f, status);
    if (result)
        return result;
    process->inheritable = number_in(status, "CapInh:", 16);
    process->permitted = number_in(status, "CapPrm:", 16);
    process->effective = number_in(status, "CapEff:", 16);
    process->bounding = number_in(status, "CapBnd:", 16);
    process->ambient = number_in(status, "CapAmb:", 16);
    sys3(SYS_getresuid, (long)&process->users[0], (long)&process->users[1], (long)&process->users[2]);
    sys3(SYS_getresgid, (long)&process->groups[0], (long)&process->groups[1], (long)&process->groups[2]);
    note_settings(process);
    return note_groups(f);
}
