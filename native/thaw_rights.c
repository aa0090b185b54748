// Runs in thaw's address space. Limits the copy to the rights of the frozen process. If this program itself has
// fewer rights than the frozen process had, the copy has only those.
//
// Source: credentials(7), capabilities(7), prctl(2).

#include <errno.h>
#include <linux/capability.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <linux/securebits.h>

#include "drop_capabilities.h"
#include "thaw.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
#define RESOURCES 16
#define GROUPS_MOST 65536 // NGROUPS_MAX

void rights_check(struct thaw *t) {
    char status[8192];
    uint32_t wanted = t->header->process.seccomp_filters;
    if (!wanted)
        return;
    long bytes = read_text_file("/proc/self/status", status, sizeof status);
    const char *at = bytes > 0 ? find_line(status, "Seccomp_filters:") : 0;
    if (at)
        skip_spaces(&at);
    if (!at || take_number(&at, 10) < wanted)
        thaw_refuse("the frozen process was under more seccomp filters than this one", "");
}

static int same_groups(const char *frozen) {
    static uint32_t groups[GROUPS_MOST];
    long count = sys3(SYS_getgroups, GROUPS_MOST, (long)groups, 0);
    for (long i = 0; i < count; i++) {
        if (!*frozen || take_number(&frozen, 10) != groups[i])
            return 0;
        skip_spaces(&frozen);
    }
    return count >= 0 && !*frozen;
}

static long set_groups(const char *frozen) {
    static uint32_t groups[GROUPS_MOST];
    long count = 0;
    for (; *frozen && count < GROUPS_MOST; skip_spaces(&frozen))
        groups[count++] = (uint32_t)take_number(&frozen, 10);
    return sys3(SYS_setgroups, count, (long)groups, 0);
}

// Restores the groups. In a user namespace of its own a process sees other group numbers, and cannot drop any group.
void rights_become_groups(struct thaw *t) {
    const struct process_facts *process = &t->header->process;
    const char *more = string_at(t, process->more_groups);
    if (*more == '?') // the process was frozen in a user namespace of its own
        return;
    uint32_t now[3] = {0};
    sys3(SYS_getresgid, (long)&now[0], (long)&now[1], (long)&now[2]);
    long result = same_groups(more) ? 0 : set_groups(more);
    if (!result && __builtin_memcmp(now, process->groups, sizeof now))
        result = sys3(SYS_setresgid, process->groups[0], process->groups[1], process->groups[2]);
    if (result && in_first_user_namespace())
        thaw_refuse("the frozen process was in other groups, and this process may not change its groups", "");
}

// Restores the user ids. stage_open has ensured that the image's owner is this process's effective user. So if the
// three ids were equal at the freeze and are equal now, the user is the same, even if its number differs, as in a user
// namespace.
static void become_users(struct thaw *t) {
    const uint32_t *frozen = t->header->process.users;
    uint32_t now[3] = {0};
    sys3(SYS_getresuid, (long)&now[0], (long)&now[1], (long)&now[2]);
    int alike = now[0] == now[1] && now[1] == now[2];
    if ((alike && frozen[0] == frozen[1] && frozen[1] == frozen[2]) || !__builtin_memcmp(now, frozen, sizeof now))
        return;
    sys_prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0); // `limit_capabilities` drops the excess
    if (sys3(SYS_setresuid, frozen[0], frozen[1], frozen[2]))
        thaw_refuse("the frozen process had other real or saved user ids, and this process may not change its ids", "");
    sys_prctl(PR_SET_KEEPCAPS, (t->header->process.secure_bits & SECBIT_KEEP_CAPS) != 0, 0, 0, 0);
}

// Reduces the bounding set of capabilities to the frozen process's. Without CAP_SETPCAP that is not possible; then
// no_new_privs is set instead: the set matters only at an exec, which no_new_privs limits even more.
static void limit_bounding(const struct process_facts *process) {
    for (int capability = 0; capability < 64; capability++) {
        long has = sys_prctl(PR_CAPBSET_READ, capability, 0, 0, 0);
        if (has < 0)
            return; // the kernel has no further capabilities
        if (!has || process->bounding >> capability & 1)
            continue;
        if (sys_prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            return;
        }
    }
}

static void set_secure_bits(const struct process_facts *process) {
    long now = sys_prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    uint32_t kept = process->secure_bits & SECBIT_KEEP_CAPS;
    sys_prctl(PR_SET_KEEPCAPS, kept != 0, 0, 0, 0);
    if (now >= 0 && (process->secure_bits & ~(uint32_t)now & ~(uint32_t)SECBIT_KEEP_CAPS) &&
        sys_prctl(PR_SET_SECUREBITS, now | process->secure_bits, 0, 0, 0) < 0)
        thaw_refuse("the frozen process had securebits that this process may not set", "");
}

static void limit_capabilities(const struct process_facts *process) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct now[_LINUX_CAPABILITY_U32S_3] = {0}, wanted[_LINUX_CAPABILITY_U32S_3];
    long result = sys3(SYS_capget, (long)&header, (long)now, 0);
    for (int i = 0; !result && i < _LINUX_CAPABILITY_U32S_3; i++) {
        uint32_t permitted = now[i].permitted & (uint32_t)(process->permitted >> 32 * i);
        uint32_t inheritable = (uint32_t)(process->inheritable >> 32 * i);
        wanted[i].permitted = permitted;
        wanted[i].effective = permitted & (uint32_t)(process->effective >> 32 * i);
        wanted[i].inheritable = inheritable & (now[i].inheritable | permitted);
    }
    if (!result && __builtin_memcmp(now, wanted, sizeof now))
        result = sys3(SYS_capset, (long)&header, (long)wanted, 0);
    if (result)
        thaw_fail("capabilities cannot be limited to those of the frozen process", "", result);
    sys_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    for (int capability = 0; capability < 64; capability++)
        if (process->ambient >> capability & 1)
            sys_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0);
}

void stage_rights(struct thaw *t) {
    const struct process_facts *process = &t->header->process;
    int death_signal = 0; // saved, because a change of user or capabilities clears it
    sys_prctl(PR_GET_PDEATHSIG, (long)&death_signal, 0, 0, 0);
    rights_become_groups(t);
    limit_bounding(process);
    set_secure_bits(process);
    become_users(t);
    limit_capabilities(process);
    if (t->rights == RIGHTS_NONE && drop_capabilities())
        thaw_fail("capabilities cannot be dropped", "", EPERM);
    if (process->no_privileges && sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        thaw_fail("no_new_privs cannot be set", "", EPERM);
    if (process->fixed_code && sys_prctl(PR_SET_MDWE, process->fixed_code, 0, 0, 0) < 0)
        thaw_refuse(
            "the frozen process could not make writable memory executable (PR_SET_MDWE), and this kernel cannot "
            "forbid that to the copy",
            "");
    if (process->subreaper)
        sys_prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (process->no_huge_pages)
        sys_prctl(PR_SET_THP_DISABLE, 1, process->no_huge_pages & ~1u, 0, 0);
    if (process->death_signal || death_signal)
        sys_prctl(PR_SET_PDEATHSIG, process->death_signal ? (long)process->death_signal : death_signal, 0, 0, 0);
    if (sys3(SYS_personality, 0xffffffff, 0, 0) != process->personality)
        sys3(SYS_personality, process->personality, 0, 0);
}

void rights_limit(const struct process_facts *process) {
    for (int resource = 0; resource < RESOURCES; resource++) {
        uint64_t now[2];
        if (sys6(SYS_prlimit64, 0, resource, 0, (long)now, 0, 0))
            continue;
        // The soft limit is that of the frozen process. The hard limit is the lower one of the two processes'.
        const uint64_t *frozen = &process->limits[2 * resource];
        uint64_t hard = frozen[1] < now[1] ? frozen[1] : now[1];
        uint64_t limit[2] = {frozen[0] < hard ? frozen[0] : hard, hard};
        if (__builtin_memcmp(now, limit, sizeof now))
            sys6(SYS_prlimit64, 0, resource, (long)limit, 0, 0, 0);
    }
    // This comes last: if the process is not dumpable, /proc/self belongs to root, and files there cannot be opened.
    sys_prctl(PR_SET_DUMPABLE, process->dumpable == 1, 0, 0, 0);
}
