// Runs in the process that is frozen. Tests that a copy does not have more rights than the frozen process.

#include "harness.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stddef.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif

#define SELF "/proc/self/status"

static struct worker worker; // a thread from before the freeze, which must have the same rights as the main thread

static void look_for_privileges(struct worker *self) {
    while (!self->stop)
        rest();
    self->rounds = (int)prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
}

CASE(no_new_privileges, "no_new_privs stays set, in the main thread and in another thread from before the freeze") {
    CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    start_worker(&worker, look_for_privileges);
    freeze_here();
    CHECK_EQUAL(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
    stop_worker(&worker);
    CHECK_EQUAL(worker.rounds, 1);
}

CASE(bounding_set, "capabilities that were dropped from the bounding set stay dropped, also after an exec") {
    if (prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0) < 0)
        not_here("the bounding set may not be changed");
    CHECK_EQUAL(prctl(PR_CAPBSET_DROP, CAP_NET_RAW, 0, 0, 0), 0);
    long before = status_number(SELF, "\nCapBnd:", 16);
    freeze_here();
    CHECK_EQUAL(prctl(PR_CAPBSET_READ, CAP_SYS_PTRACE, 0, 0, 0), 0);
    CHECK_EQUAL(prctl(PR_CAPBSET_READ, CAP_NET_RAW, 0, 0, 0), 0);
    CHECK_EQUAL(status_number(SELF, "\nCapBnd:", 16), before);
    char line[64] = "";
    FILE *program = popen("grep CapPrm /proc/self/status", "re");
    CHECK(program && fgets(line, sizeof line, program));
    CHECK_EQUAL(pclose(program), 0);
    CHECK_EQUAL(strtol(line + strlen("CapPrm:"), NULL, 16) & ~before, 0);
}

static void compare_capabilities(struct worker *self) {
    char path[64];
    while (!self->stop)
        rest();
    snprintf(path, sizeof path, "/proc/self/task/%d/status", gettid());
    self->rounds = status_number(path, "\nCapPrm:", 16) == status_number(SELF, "\nCapPrm:", 16) &&
                   status_number(path, "\nCapEff:", 16) == status_number(SELF, "\nCapEff:", 16);
}

CASE(capabilities,
     "permitted, effective, inheritable and ambient capabilities are the same as at the freeze, in all threads") {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {
        {.permitted = 1u << CAP_CHOWN | 1u << CAP_KILL | 1u << CAP_FSETID,
         .effective = 1u << CAP_CHOWN | 1u << CAP_FSETID,
         .inheritable = 1u << CAP_CHOWN},
    };
    if (syscall(SYS_capset, &header, data) < 0)
        not_here("there are no capabilities to drop");
    CHECK_EQUAL(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0), 0);
    start_worker(&worker, compare_capabilities);
    freeze_here();
    CHECK_EQUAL(status_number(SELF, "\nCapPrm:", 16), data[0].permitted);
    CHECK_EQUAL(status_number(SELF, "\nCapEff:", 16), data[0].effective);
    CHECK_EQUAL(status_number(SELF, "\nCapInh:", 16), data[0].inheritable);
    CHECK_EQUAL(status_number(SELF, "\nCapAmb:", 16), 1u << CAP_CHOWN);
    stop_worker(&worker);
    CHECK_EQUAL(worker.rounds, 1);
}

CASE(kept_capabilities, "securebits are unchanged") {
    CHECK_EQUAL(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), 0);
    int more = prctl(PR_SET_SECUREBITS, SECBIT_KEEP_CAPS | SECBIT_NOROOT | SECBIT_NOROOT_LOCKED, 0, 0, 0) == 0;
    freeze_here();
    CHECK_EQUAL(prctl(PR_GET_SECUREBITS, 0, 0, 0, 0),
                SECBIT_KEEP_CAPS | (more ? SECBIT_NOROOT | SECBIT_NOROOT_LOCKED : 0));
}

CASE(users_and_groups,
     "real and saved user and group ids and supplementary groups are those that the process had set") {
    const gid_t some[] = {7, 9};
    uid_t users[3];
    gid_t groups[3], found[8];
    if (setgroups(2, some) < 0)
        not_here("this user may not change groups");
    CHECK_EQUAL(setresgid(5, 0, 6), 0);
    CHECK_EQUAL(setresuid(1, 0, 0), 0);
    freeze_here();
    CHECK_EQUAL(getresuid(&users[0], &users[1], &users[2]), 0);
    CHECK(users[0] == 1 && users[1] == 0 && users[2] == 0);
    CHECK_EQUAL(getresgid(&groups[0], &groups[1], &groups[2]), 0);
    CHECK(groups[0] == 5 && groups[1] == 0 && groups[2] == 6);
    CHECK_EQUAL(getgroups(8, found), 2);
    CHECK(found[0] == 7 && found[1] == 9);
}

CASE(settings,
     "settings by prctl and personality stay: subreaper, no huge pages, fixed code, the signal at the parent's death") {
    int subreaper = 0, signal = 0;
    CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
    CHECK_EQUAL(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    CHECK_EQUAL(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), 0);
    CHECK_EQUAL(personality(ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT), personality(0xffffffff) ? 0 : 0);
    long fixed = prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0; // Linux 6.3
    freeze_here();
    CHECK_EQUAL(prctl(PR_GET_CHILD_SUBREAPER, &subreaper, 0, 0, 0), 0);
    CHECK_EQUAL(subreaper, 1);
    CHECK_EQUAL(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
    CHECK_EQUAL(prctl(PR_GET_PDEATHSIG, &signal, 0, 0, 0), 0);
    CHECK_EQUAL(signal, SIGKILL);
    CHECK_EQUAL(personality(0xffffffff), ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT);
    CHECK(!fixed || prctl(PR_GET_MDWE, 0, 0, 0, 0) == 1);
}

CASE(not_dumpable, "if other processes may not inspect the frozen process, they may not inspect its copies either") {
    CHECK_EQUAL(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), 0);
    if (access("/proc/self/mem", R_OK) < 0)
        not_here("a process that is not dumpable cannot read its own memory as this user, so nothing is frozen");
    freeze_here();
    CHECK_EQUAL(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
}

CASE(limits, "resource limits that the process has set apply to a copy") {
    const struct {
        int resource;
        rlim_t soft, hard;
    } set[] = {{RLIMIT_CORE, 0, 0}, {RLIMIT_NOFILE, 100, 200}, {RLIMIT_FSIZE, 1 << 30, 1 << 30}};
    struct rlimit now;
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        CHECK_EQUAL(setrlimit(set[i].resource, &(struct rlimit){set[i].soft, set[i].hard}), 0);
    freeze_here();
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        CHECK_EQUAL(getrlimit(set[i].resource, &now), 0);
        CHECK_EQUAL(now.rlim_cur, set[i].soft);
        CHECK_EQUAL(now.rlim_max, set[i].hard);
    }
}

static void be_modest(struct worker *self) {
    CHECK_EQUAL(setpriority(PRIO_PROCESS, 0, 11), 0);
    CHECK_EQUAL(prctl(PR_SET_TIMERSLACK, 123456, 0, 0, 0), 0);
    CHECK_EQUAL(syscall(SYS_ioprio_set, 1, 0, 3 << 13), 0); // IOPRIO_CLASS_IDLE
    CHECK_EQUAL(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}), 0);
    self->rounds = 1;
    while (!self->stop)
        rest();
    CHECK_EQUAL(getpriority(PRIO_PROCESS, 0), 11);
    CHECK_EQUAL(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 123456);
    CHECK_EQUAL(syscall(SYS_ioprio_get, 1, 0), 3 << 13);
    CHECK_EQUAL(sched_getscheduler(0), SCHED_BATCH);
}

CASE(priorities, "a thread keeps its nice value, timer slack, I/O priority and scheduling policy") {
    long before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    start_worker(&worker, be_modest);
    WAIT_UNTIL(worker.rounds == 1);
    CHECK_EQUAL(setpriority(PRIO_PROCESS, 0, 3), 0);
    freeze_here();
    CHECK_EQUAL(getpriority(PRIO_PROCESS, 0), 3);
    CHECK_EQUAL(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), before);
    stop_worker(&worker);
}
