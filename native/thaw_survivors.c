// Runs in thaw's address space. Moves data that is still needed after `clear` into the zone: arguments, environment
// variables, vDSO. Later moves the vDSO to its address in the frozen process.

#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>

#include "thaw.h"
#include "vma.h"

#define EXEC_TRIES 16

static void keep_word(struct thaw *t, const char *word) {
    uint64_t bytes = text_bytes(word) + 1;
    if (t->words_bytes + bytes > WORDS_BYTES)
        thaw_refuse("arguments and environment variables are longer than 256 KiB", "");
    copy_bytes(t->words + t->words_bytes, word, bytes);
    t->words_bytes += bytes;
}

static void keep_words(struct thaw *t) {
    char **argument = t->envp - 1 - t->argument_count;
    for (uint32_t i = 0; i < t->argument_count; i++)
        keep_word(t, argument[i]);
    for (char **variable = t->envp; *variable; variable++, t->variable_count++)
        keep_word(t, *variable);
}

static int overlaps_image(struct thaw *t, uint64_t start, uint64_t end) {
    const struct operation *operations = SECTION(t, struct operation, SECTION_OPERATIONS);
    for (uint32_t i = 0; i < COUNT(t, SECTION_OPERATIONS); i++)
        if (operations[i].address < end && operations[i].address + operations[i].length > start)
            return 1;
    const struct process_facts *process = &t->header->process;
    return process->vdso_start < end && process->vdso_start + process->vdso_bytes > start;
}

// Executes this program again, because with each exec the kernel puts the vDSO at another address.
_Noreturn static void exec_again(struct thaw *t) {
    static char *argv[4096];
    static char number[48];
    int count = 1;
    if (t->again >= EXEC_TRIES)
        thaw_fail("the sealed vDSO is at an address that the image needs, in every layout that was tried", "", EEXIST);
    struct writer out = text_writer(number, sizeof number);
    put_number(&out, (uint64_t)t->again + 1, 10);
    if (t->disk.root) { // the image cannot be opened in the new root, so the descriptor stays open
        put_text(&out, ":");
        put_number(&out, (uint64_t)t->image_fd, 10);
        sys_fcntl(t->image_fd, F_SETFD, 0);
    }
    argv[0] = t->argv[0];
    argv[count++] = "--again";
    argv[count++] = number;
    for (int i = t->again ? 3 : 1; t->argv[i] && count < 4095; i++)
        argv[count++] = t->argv[i];
    long result = sys3(SYS_execve, (long)"/proc/self/exe", (long)argv, (long)t->envp);
    thaw_fail("thaw cannot be started again", "", result);
}

uint64_t vdso_start(const struct vdso_parts *vdso) {
    return vdso->vvar_bytes ? vdso->vvar_start : vdso->code_start;
}

// Moves the vDSO with the data areas before its code, one mapping at a time: mremap moves only one mapping. Returns 0,
// or -EPERM when the kernel has sealed the vDSO (CONFIG_MSEAL_SYSTEM_MAPPINGS).
static int move_vdso(struct thaw *t, uint64_t start, uint64_t end, uint64_t to) {
    for (uint64_t at = start; at < end;) {
        struct vma vma;
        if (vma_at(at, &vma, t->by_text) || vma.start != at)
            thaw_fail("the vDSO was not found at its address", "", ENOENT);
        long result = sys_mremap(at, vma.end - at, vma.end - at, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        if (SYS_FAILED(result) && at == start)
            return -EPERM;
        if (SYS_FAILED(result))
            thaw_fail("the vDSO cannot be moved", "", result);
        to += vma.end - at;
        at = vma.end;
    }
    return 0;
}

static int is_frozen_vdso(const struct vdso_parts *vdso, const struct process_facts *process) {
    struct vdso_parts frozen = {process->vvar_start, process->vvar_bytes, process->vdso_start, process->vdso_bytes};
    return vdso->code_bytes == frozen.code_bytes &&
           vdso->code_start - vdso_start(vdso) == frozen.code_start - vdso_start(&frozen) &&
           checksum((const void *)vdso->code_start, vdso->code_bytes) == process->vdso_hash;
}

// Moves the vDSO into the zone. If the kernel has sealed the vDSO, or has another one than at the freeze, it stays
// where it is. If the image has memory there, thaw executes itself again, to get a vDSO at another address.
static void park_vdso(struct thaw *t) {
    struct vdso_parts *vdso = &t->vdso;
    uint64_t start = vdso_start(vdso), end = vdso->code_start + vdso->code_bytes;
    if (!is_frozen_vdso(vdso, &t->header->process))
        t->vdso_jump = 1;
    if (!t->vdso_jump && move_vdso(t, start, end, ZONE_PARKED) == 0)
        return;
    if (t->header->flags & IMAGE_INSIDE_VDSO)
        thaw_refuse(
            "a thread was frozen inside the vDSO, and this kernel has another one, or one that cannot be moved; "
            "let threads that read clocks all the time rest during the freeze",
            "");
    t->vdso_jump = 1;
    if (overlaps_image(t, start, end))
        exec_again(t);
}

static int highest_descriptor(struct thaw *t) {
    uint32_t count = COUNT(t, SECTION_DESCRIPTORS);
    int highest = count ? SECTION(t, struct descriptor, SECTION_DESCRIPTORS)[count - 1].number : 2;
    for (uint32_t i = 0; i < t->provided_count; i++)
        if (t->provided[i].from > highest)
            highest = t->provided[i].from;
    return highest > 2 ? highest : 2;
}

void stage_aside(struct thaw *t) {
    t->spare_fd = highest_descriptor(t) + 1;
    t->image_fd = keep_aside(t, t->image_fd);
    keep_words(t);
    vdso_find(t);
    park_vdso(t);
}

void stage_vdso(struct thaw *t) {
    const struct process_facts *process = &t->header->process;
    struct vdso_parts frozen = {process->vvar_start, process->vvar_bytes, process->vdso_start, process->vdso_bytes};
    if (t->vdso_jump) {
        vdso_redirect(t);
        return;
    }
    uint64_t bytes = t->vdso.code_start + t->vdso.code_bytes - vdso_start(&t->vdso);
    if (move_vdso(t, ZONE_PARKED, ZONE_PARKED + bytes, vdso_start(&frozen)))
        thaw_fail("the vDSO cannot be moved", "", EPERM);
}
