// Runs in freeze and in thaw. Describes the machine, as far as a frozen process depends on it.

#include "host.h"

#include "text.h"

// Source: include/uapi/linux/utsname.h.
struct names {
    char system[65], node[65], release[65], version[65], machine[65], domain[65];
};

static void describe_cpu(struct host_key *host) {
    uint32_t leaf[4];
    cpu_id(0, 0, leaf);
    uint32_t highest = leaf[0];
    copy_bytes(host->cpu_vendor, &leaf[1], 4);
    copy_bytes(host->cpu_vendor + 4, &leaf[3], 4);
    copy_bytes(host->cpu_vendor + 8, &leaf[2], 4);
    cpu_id(1, 0, leaf);
    host->cpu_signature = leaf[0];
    host->cpu_features[0] = leaf[2];
    host->cpu_features[1] = leaf[3];
    if (leaf[2] & 1u << 27) // OSXSAVE: the instruction XGETBV works
        host->xcr0 = extended_state();
    if (highest >= 7) {
        cpu_id(7, 0, leaf);
        host->cpu_features[2] = leaf[1];
        // Without the bit OSPKE, which depends on the kernel's command line; XCR0 contains the same fact.
        host->cpu_features[3] = leaf[2] & ~(1u << 4);
        host->cpu_features[4] = leaf[3];
        cpu_id(7, 1, leaf);
        host->cpu_features[5] = leaf[0];
    }
    if (highest >= 13) {
        cpu_id(13, 0, leaf);
        host->xsave_bytes = leaf[1];
    }
}

int host_describe(struct host_key *host) {
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
    describe_cpu(host);
    return 0;
}

// Version and patch level of the kernel, so that newer ones have higher numbers: 6018 for 6.18.44.
static uint64_t kernel_number(const struct host_key *host) {
    const char *at = host->kernel_release;
    uint64_t version = take_number(&at, 10);
    at += *at == '.';
    return version * 1000 + take_number(&at, 10);
}

const char *host_difference(const struct host_key *frozen, const struct host_key *now) {
    if (kernel_number(frozen) > kernel_number(now))
        return "the image was frozen under a newer kernel, and this one may lack system calls that the process uses; "
               "freeze it under the oldest kernel that it must run on";
    if (!text_equal(frozen->cpu_vendor, now->cpu_vendor) || frozen->cpu_signature != now->cpu_signature)
        return "the image was frozen on another model of CPU";
    for (int i = 0; i < 6; i++)
        if (frozen->cpu_features[i] != now->cpu_features[i])
            return "the image was frozen on a CPU with other features";
    if (frozen->xcr0 != now->xcr0 || frozen->xsave_bytes != now->xsave_bytes)
        return "the image was frozen where the kernel saves other registers (XCR0)";
    return 0;
}
