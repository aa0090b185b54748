// Runs in the process that is frozen. Reads all mappings, and the flags that madvise has set, from /proc/self/smaps.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "freeze_parts.h"
#include "sys.h"

#define TEXT_BYTES (1u << 20)
#define MAX_LINE 8192 // more than a path of 4,096 bytes takes with escaped characters

// Source: Documentation/filesystems/proc.rst, VmFlags.
static const struct {
    char name[3];
    uint32_t advice;
} advised[] = {
    {"dc", ADVICE_DONTFORK},   {"dd", ADVICE_DONTDUMP},   {"hg", ADVICE_HUGEPAGE},
    {"nh", ADVICE_NOHUGEPAGE}, {"mg", ADVICE_MERGEABLE},  {"wf", ADVICE_WIPEONFORK},
    {"lo", ADVICE_LOCKED},     {"sr", ADVICE_SEQUENTIAL}, {"rr", ADVICE_RANDOM},
};

static void take_flags(struct mapping *mapping, const char *at) {
    for (skip_spaces(&at); at[0] && at[0] != '\n' && at[1]; at += at[2] == ' ' ? 3 : 2) {
        for (unsigned i = 0; i < sizeof advised / sizeof *advised; i++)
            if (at[0] == advised[i].name[0] && at[1] == advised[i].name[1])
                mapping->advice |= advised[i].advice;
        if (at[0] == 'm' && at[1] == 'w')
            mapping->writable_once = 1;
        if (at[0] == 'n' && at[1] == 'r')
            mapping->no_reserve = 1;
        if (at[0] == 'g' && at[1] == 'd')
            mapping->stack = 1;
        if ((at[0] == 'd' &&
             at[1] == 'p')) // droppable (Linux 6.11): the kernel may drop its contents, which must not be stored
            mapping->advice |= ADVICE_WIPEONFORK;
        if ((at[0] == 'h' && at[1] == 't') || (at[0] == 'p' && at[1] == 'f') || (at[0] == 'i' && at[1] == 'o'))
            mapping->refused_flags = 1;
    }
}

// Undoes the kernel's escaping of newlines. No other character is escaped in paths of smaps.
static void unescape(char *path) {
    char *to = path;
    for (const char *from = path; *from; to++) {
        if (text_begins(from, "\\012")) {
            *to = '\n';
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
}

static int take_path(struct freezing *f, struct mapping *mapping, char *path) {
    mapping->path = NO_INDEX;
    unescape(path);
    if (!*path)
        return 0;
    struct stat status;
    int missing = sys6(SYS_newfstatat, AT_FDCWD, (long)path, (long)&status, 0, 0, 0) < 0;
    if (path[0] == '/' && missing) {
        mapping->deleted = 1;
        if (text_ends(path, " (deleted)"))
            path[text_bytes(path) - 10] = 0;
    }
    mapping->path = add_string(f, path);
    return mapping->path == NO_INDEX
               ? refuse(f, "mappings",
                        "the paths of mapped files take more space than an image can hold; map fewer files before the "
                        "freeze",
                        "")
               : 0;
}

static int take_line(struct freezing *f, char *line, struct mapping **current) {
    int is_head = (line[0] >= '0' && line[0] <= '9') || (line[0] >= 'a' && line[0] <= 'f');
    if (!is_head) {
        if (*current && text_begins(line, "VmFlags:"))
            take_flags(*current, line + 8);
        return 0;
    }
    struct mapping *mapping = *current = table_add(&f->mappings);
    if (!mapping)
        return refuse(f, "mappings",
                      "there are more mappings than an image can hold; unmap some, or free memory in larger pieces",
                      "");
    const char *at = line;
    mapping->start = take_number(&at, 16);
    at++;
    mapping->end = take_number(&at, 16);
    at++;
    mapping->protection = (uint32_t)((at[0] == 'r') | (at[1] == 'w') << 1 | (at[2] == 'x') << 2);
    mapping->shared = at[3] == 's';
    at += 5;
    mapping->offset = take_number(&at, 16);
    at++;
    uint64_t major = take_number(&at, 16);
    at++;
    mapping->device = major << 32 | take_number(&at, 16);
    at++;
    mapping->inode = take_number(&at, 10);
    skip_spaces(&at);
    return take_path(f, mapping, (char *)at);
}

static const char *name_of(struct freezing *f, const struct mapping *mapping) {
    return mapping->path == NO_INDEX ? "" : (const char *)f->sections[SECTION_STRINGS].base + mapping->path;
}

// Returns whether `mapping` is left out of the image: memory that the kernel provides (vDSO, its data, vsyscall), the
// scratch memory and, in a copy, what thaw has left in the zone. Records the place of the vDSO.
static int is_left_out(struct freezing *f, const struct mapping *mapping) {
    const char *name = name_of(f, mapping);
    struct process_facts *process = &f->process;
    if (text_equal(name, "[vdso]")) {
        process->vdso_start = mapping->start;
        process->vdso_bytes = mapping->end - mapping->start;
        return 1;
    }
    if (text_begins(name, "[vvar")) { // [vvar] and, since Linux 6.13, [vvar_vclock] after it
        if (!process->vvar_bytes)
            process->vvar_start = mapping->start;
        process->vvar_bytes = mapping->end - process->vvar_start;
        return 1;
    }
    int in_zone = mapping->start >= ZONE_START && mapping->end <= ZONE_START + ZONE_BYTES;
    return text_equal(name, "[vsyscall]") || mapping->start == f->scratch || (in_zone && thawd_landing.image_count);
}

// Removes from the list the mappings that must not be stored. Refuses mappings that cannot be restored.
static int drop_and_refuse(struct freezing *f) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < f->mappings.count; i++) {
        struct mapping *mapping = AT(f->mappings, struct mapping, i);
        if (is_left_out(f, mapping))
            continue;
        if (mapping->start < ZONE_START + ZONE_BYTES && mapping->end > ZONE_START)
            return refuse(f, "mappings",
                          "the process uses addresses that thaw needs; unmap that memory before the freeze: at ",
                          "0x3f0000000000");
        const char *name = name_of(f, mapping);
        if (text_equal(name, "anon_inode:[io_uring]")) {
            int result = ring_note_mapping(f, mapping);
            if (result)
                return result;
            continue;
        }
        if (mapping->refused_flags || text_begins(name, "/dev/nvidia") || text_begins(name, "/dev/dri") ||
            text_begins(name, "/dev/kfd") || text_begins(name, "anon_inode:") || text_begins(name, "/secretmem"))
            return refuse(
                f, "mappings",
                "memory of a device, of huge pages or of the kernel is mapped; free it before the freeze, or open "
                "the device on the first invocation. Mapped: ",
                *name ? name : "huge pages");
        mapping->complete = f->request->flags & FREEZE_COMPLETE && image_of(mapping);
        *AT(f->mappings, struct mapping, kept++) = *mapping;
    }
    f->mappings.count = kept;
    if (!f->process.vdso_bytes)
        return refuse(f, "mappings", "the process has no vDSO; start the kernel without vdso=0", "");
    return 0;
}

// Whether a clock of this time namespace differs from that of the machine. Source: time_namespaces(7).
static int has_other_clocks(void) {
    char offsets[256];
    long bytes = read_text_file("/proc/self/timens_offsets", offsets, sizeof offsets);
    for (const char *at = offsets; bytes > 0 && *at; at++)
        if (*at >= '1' && *at <= '9')
            return 1;
    return 0;
}

// In a time namespace, the functions of the vDSO read other data than outside, and the copy may be outside.
static int note_inside_vdso(struct freezing *f) {
    uint64_t vdso = f->process.vdso_start, end = vdso + f->process.vdso_bytes;
    f->inside_vdso = park_is_inside(vdso, end) || park_has_interrupted(f, vdso, end);
    return f->inside_vdso && has_other_clocks()
               ? refuse(f, "mappings",
                        "a thread was stopped inside the vDSO, in a time namespace; let threads that read clocks all "
                        "the time rest during the freeze",
                        "")
               : 0;
}

void vdso_note(struct freezing *f) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[MAX_LINE];
    while (maps && fgets(line, sizeof line, maps)) {
        const char *at = line;
        if (!strstr(line, " [vdso]\n"))
            continue;
        f->vdso_start = take_number(&at, 16);
        at++;
        f->vdso_end = take_number(&at, 16);
    }
    if (maps)
        fclose(maps);
}

int mappings_read(struct freezing *f) {
    int fd = sys_open("/proc/self/smaps", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fail(f, "mappings", fd,
                    "/proc/self/smaps cannot be opened; perhaps the kernel lacks CONFIG_PROC_PAGE_MONITOR");
    char *buffer = (char *)f->text.base;
    uint64_t have = 0;
    long got;
    int result = 0;
    struct mapping *current = 0;
    while (!result && (got = sys_read(fd, buffer + have, TEXT_BYTES - have)) > 0) {
        have += (uint64_t)got;
        char *line = buffer;
        for (char *at = buffer; !result && at < buffer + have; at++)
            if (*at == '\n') {
                *at = 0;
                result = take_line(f, line, &current);
                line = at + 1;
            }
        have = (uint64_t)(buffer + have - line);
        copy_bytes(buffer, line, have);
        if (!result && have > MAX_LINE)
            result = refuse(f, "mappings", "a mapped file has a path that is too long; give it a shorter one", "");
    }
    sys_close(fd);
    if (result)
        return result;
    if (got < 0)
        return fail(f, "mappings", got, "/proc/self/smaps cannot be read");
    result = drop_and_refuse(f);
    if (!result)
        result = note_inside_vdso(f);
    return result ? result : fault_point(f, "mappings");
}
