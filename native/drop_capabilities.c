// Runs in freeze and in thaw. Drops capabilities permanently.
//
// Source: capabilities(7).

#include "drop_capabilities.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/prctl.h>

#include "sys.h"
#include "text.h"

int in_first_user_namespace(void) {
    char map[64];
    const char *at = map;
    if (read_text_file("/proc/self/uid_map", map, sizeof map) <= 0)
        return 0;
    skip_spaces(&at);
    uint64_t inside = take_number(&at, 10);
    skip_spaces(&at);
    uint64_t outside = take_number(&at, 10);
    skip_spaces(&at);
    return !inside && !outside && take_number(&at, 10) == UINT32_MAX;
}

int drop_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    int death_signal = 0; // saved (PR_SET_PDEATHSIG), because capset can clear it
    sys_prctl(PR_GET_PDEATHSIG, (long)&death_signal, 0, 0, 0);
    for (int capability = 0;; capability++) {
        long dropped = sys_prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
        if (dropped == -EINVAL)
            break; // the kernel has no further capabilities
        if (dropped == 0 || sys_prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 0)
            continue;
        // Without CAP_SETPCAP the bounding set cannot be changed. The set matters only at an exec, so no_new_privs is
        // set instead, which limits an exec even more.
        long result = sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (result < 0)
            return (int)result;
        break;
    }
    sys_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    long result = sys3(SYS_capset, (long)&header, (long)none, 0);
    if (death_signal)
        sys_prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0);
    return (int)result;
}
