// Runs in freeze and in thaw. Describes the machine, as far as a frozen process depends on it.

#include "host.h"

#include "cpu.h"
#include "text.h"

// Source: include/uapi/linux/utsname.h.
struct names {
    char system[65], node[65], release[65], version[65], machine[65], domain[65];
};

int host_describe_start(struct host_key *host) {
    struct names names;
    clear_bytes(host, sizeof *host);
    long result = sys3(SYS_uname, (long)&names, 0, 0);
    if (result < 0)
        return (int)result;
    copy_bytes(host->kernel_release, names.release, sizeof names.release);
    copy_bytes(host->kernel_version, names.version, sizeof names.version);
    // The kernel does not clear the bytes after the terminating NUL.
    for (uint64_t i = text_bytes(host->kernel_release); i < sizeof host->kernel_release; i++)
        host->kernel_release[i] = 0;
    for (uint64_t i = text_bytes(host->kernel_version); i < sizeof host->kernel_version; i++)
        host->kernel_version[i] = 0;
    long bytes = read_text_file("/proc/sys/kernel/random/boot_id", host->boot_id, sizeof host->boot_id);
    if (bytes < 0)
        return (int)bytes;
    if (bytes && host->boot_id[bytes - 1] == '\n')
        host->boot_id[bytes - 1] = 0;
    return 0;
}

int host_describe(struct host_key *host) {
    int result = host_describe_start(host);
    if (!result)
        cpu_describe(host);
    return result;
}

// Version and patch level of the kernel, so that newer ones have higher numbers: 6018 for 6.18.44.
static uint64_t kernel_number(const struct host_key *host) {
    const char *at = host->kernel_release;
    uint64_t version = take_number(&at, 10);
    at += *at == '.';
    return version * 1000 + take_number(&at, 10);
}

const char *host_difference(const struct host_key *frozen, const struct host_key *now, char detail[CPU_DETAIL_BYTES]) {
    *detail = 0;
    if (kernel_number(frozen) > kernel_number(now))
        return "the image was frozen under a newer kernel, and this one may lack system calls that the process uses; "
               "freeze it under the oldest kernel that it must run on";
    return cpu_difference(frozen, now, detail);
}
