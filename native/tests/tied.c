// Runs as a separate program and then executes another: `tied PARENT [OPTION]... -- PROGRAM [ARGUMENT]...`. The tests
// start every program with it, so that no program outlives the tests. PROGRAM is killed when the thread that started it
// ends (a thread of the process with the id PARENT), and at the latest after CPU_MOST_S seconds of processor time. Both
// also apply to a copy, if PROGRAM is thaw. The options say how PROGRAM runs:
//
//   --user=UID:GID       as another user, without other groups
//   --user=UID:GID:MORE  as another user, also in the group MORE
//   --no-new-privileges  with no_new_privs set; prctl(2), PR_SET_NO_NEW_PRIVS
//   --user-namespace     in a new user namespace, which has no mapping for this user; user_namespaces(7)
//   --no-randomisation   without address space layout randomisation; personality(2)
//   --group=FILE         in a cgroup; FILE is the cgroup's list of processes; cgroups(7)
//   --no-kcmp            in such a way that kcmp(2) fails with EPERM, as in many containers
//   --clocks-ahead       with clocks that seem to count since a start of the machine a million seconds earlier than its
//                        own; time_namespaces(7)
//   --no-time-namespace  without the right to make a time namespace, as in many containers
//   --no-user-namespace  with sysctl user.max_user_namespaces = 0
//   --no-query           without fcntl(2)'s F_DUPFD_QUERY, as before Linux 6.10

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CPU_MOST_S 120
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#define CANNOT 125 // exit status when the program was not started

static void need(int result, const char *what) {
    if (result >= 0)
        return;
    dprintf(2, "tied: %s: %s\n", what, strerror(errno));
    _exit(CANNOT);
}

static void join_group(const char *list) {
    char id[16];
    int length = snprintf(id, sizeof id, "%d", getpid()), fd = open(list, O_WRONLY | O_CLOEXEC);
    need(fd, list);
    need((int)write(fd, id, (size_t)length), list);
    close(fd);
}

// Makes system call `number` fail with `error` if its argument `index` is `value`. Source: seccomp(2).
static void deny(unsigned number, unsigned index, unsigned value, unsigned error) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, args) + 8 * index),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "PR_SET_SECCOMP");
}

static void become(const char *user) {
    char *group;
    uid_t uid = (uid_t)strtoul(user, &group, 10);
    gid_t gid = (gid_t)strtoul(group + 1, &group, 10), more = *group ? (gid_t)strtoul(group + 1, NULL, 10) : 0;
    need(setgroups(*group ? 1 : 0, &more), "setgroups");
    need(setresgid(gid, gid, gid), "setresgid");
    need(setresuid(uid, uid, uid), "setresuid");
}

// Enters a time namespace, and a user namespace if that takes a privilege which this user does not have.
static void set_clocks_ahead(void) {
    static const char offsets[] = "1 1000000 0\n7 1000000 0\n";  // CLOCK_MONOTONIC, CLOCK_BOOTTIME
    need(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "PR_SET_DUMPABLE"); // so that files in /proc/self belong to this user
    if (unshare(CLONE_NEWTIME) < 0)
        need(unshare(CLONE_NEWUSER | CLONE_NEWTIME), "unshare");
    int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    need(fd, "/proc/self/timens_offsets");
    need((int)write(fd, offsets, sizeof offsets - 1), "/proc/self/timens_offsets");
    close(fd);
    fd = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
    need(fd, "/proc/self/ns/time_for_children");
    need(setns(fd, CLONE_NEWTIME), "setns");
    close(fd);
}

static void apply(const char *option) {
    if (strcmp(option, "--no-new-privileges") == 0)
        need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), option);
    else if (strcmp(option, "--user-namespace") == 0)
        need(unshare(CLONE_NEWUSER), option);
    else if (strcmp(option, "--no-randomisation") == 0)
        need(personality(ADDR_NO_RANDOMIZE), option);
    else if (strncmp(option, "--user=", 7) == 0)
        become(option + 7);
    else if (strncmp(option, "--group=", 8) == 0)
        join_group(option + 8);
    else if (strcmp(option, "--no-kcmp") == 0)
        deny(SYS_kcmp, 2, KCMP_FILE, EPERM);
    else if (strcmp(option, "--clocks-ahead") == 0)
        set_clocks_ahead();
    else if (strcmp(option, "--no-time-namespace") == 0) {
        deny(SYS_unshare, 0, CLONE_NEWTIME, EPERM);
        deny(SYS_unshare, 0, CLONE_NEWUSER | CLONE_NEWTIME, EPERM);
    } else if (strcmp(option, "--no-user-namespace") == 0) {
        deny(SYS_unshare, 0, CLONE_NEWTIME, EPERM);
        deny(SYS_unshare, 0, CLONE_NEWUSER | CLONE_NEWTIME, ENOSPC);
    } else if (strcmp(option, "--no-query") == 0)
        deny(SYS_fcntl, 1, 1027 /* F_DUPFD_QUERY */, EINVAL);
    else
        need(-1, option);
}

int main(int argc, char **argv) {
    const struct rlimit most = {CPU_MOST_S, CPU_MOST_S};
    int at = 2;
    if (argc < 2)
        return CANNOT;
    for (; argv[at] && strcmp(argv[at], "--") != 0; at++)
        apply(argv[at]);
    if (!argv[at] || !argv[at + 1])
        return CANNOT;
    need(setrlimit(RLIMIT_CPU, &most), "RLIMIT_CPU");
    need(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0),
         "PR_SET_PDEATHSIG"); // set here, because entering a user namespace clears it
    if (getppid() != atoi(argv[1]))
        return CANNOT; // the parent has died already
    execvp(argv[at + 1], argv + at + 1);
    need(-1, argv[at + 1]);
}
