// Runs in the process that is frozen. Tests that rights to which copies could not be limited are refused.

#include "refusing.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static struct worker worker;

// Installs a filter for the calling thread only, which makes swapon(2) fail; no code here calls it. Source: seccomp(2).
static void add_filter(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_swapon, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0)
        not_here("there are no seccomp filters");
}

static void be_filtered(struct worker *self) {
    add_filter();
    self->rounds = 1;
    while (!self->stop)
        rest();
}

CASE(filter_of_a_thread, "a thread with its own seccomp filter is refused, and the refusal names it") {
    CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    start_worker(&worker, be_filtered);
    CHECK_EQUAL(pthread_setname_np(worker.thread, "filtered one"), 0);
    WAIT_UNTIL(worker.rounds == 1);
    begin();
    expect_refusal("filtered one", "after the freeze");
    stop_worker(&worker);
    freeze_after_all();
}

static void lose_capabilities(struct worker *self) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    CHECK_EQUAL(syscall(SYS_capset, &header, none), 0);
    self->rounds = 1;
    while (!self->stop)
        rest();
}

CASE(capabilities_of_a_thread, "a thread with fewer capabilities than others is refused, and the refusal names it") {
    if (status_number("/proc/self/status", "\nCapPrm:", 16) == 0)
        not_here("there are no capabilities to drop");
    start_worker(&worker, lose_capabilities);
    CHECK_EQUAL(pthread_setname_np(worker.thread, "modest one"), 0);
    WAIT_UNTIL(worker.rounds == 1);
    begin();
    expect_refusal("modest one", "after the freeze");
    stop_worker(&worker);
    freeze_after_all();
}

static void freeze_without_capabilities(struct worker *self) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    CHECK_EQUAL(syscall(SYS_capset, &header, none), 0);
    expect_refusal("first one", "after the freeze");
    self->rounds = 1;
}

CASE(capabilities_of_the_main_thread, "a main thread with other capabilities than the freezing thread is refused") {
    if (status_number("/proc/self/status", "\nCapPrm:", 16) == 0)
        not_here("there are no capabilities to drop");
    begin();
    CHECK_EQUAL(prctl(PR_SET_NAME, "first one"), 0);
    start_worker(&worker, freeze_without_capabilities);
    WAIT_UNTIL(worker.rounds == 1);
    stop_worker(&worker);
    freeze_after_all();
}

// This is the last case, because a filter cannot be removed.
CASE(filter,
     "a process that has installed a seccomp filter is refused, whether the number at its start is known or not") {
    add_filter();
    begin();
    expect_refusal("seccomp filter", "first invocation");
    started_filters = -1;
    expect_refusal("seccomp filter", "first invocation");
    dprintf(1, "pass\n");
    _exit(0);
}
