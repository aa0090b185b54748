// Runs in thaw's address space. Restores brk, command line, working folder, umask and signal actions. Fills in the
// landing, a struct in the frozen memory through which the copy gets its arguments (thaw_landing.h).

#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <sys/stat.h>

#include "thaw.h"
#include "thaw_landing.h"
#include "vma.h"

// Writes the ranges that are mapped from the image, as pairs of addresses, to the end of the parcel. The functions of
// libc_patches.c look there before they ask the kernel what is mapped, or instead if the kernel does not answer. If the
// parcel is full, the ranges are left out.
static void note_ranges(struct thaw *t, uint64_t at) {
    const struct operation *operations = SECTION(t, struct operation, SECTION_OPERATIONS);
    const struct process_facts *process = &t->header->process;
    uint64_t *pairs = (uint64_t *)at, room = (process->parcel + process->parcel_bytes - at) / 16, count = 0;
    for (uint32_t i = 0; i < COUNT(t, SECTION_OPERATIONS); i++) {
        const struct operation *operation = &operations[i];
        if (operation->kind != OPERATION_DATA)
            continue;
        uint64_t of_file = operation->offset < t->header->anonymous_offset ? RANGE_OF_FILE : 0;
        if (count && pairs[2 * count - 1] == operation->address && (pairs[2 * count - 2] & RANGE_OF_FILE) == of_file) {
            pairs[2 * count - 1] += operation->length;
            continue;
        }
        if (count == room)
            return;
        pairs[2 * count] = operation->address | of_file;
        pairs[2 * count++ + 1] = operation->address + operation->length;
    }
    t->ranges_at = at;
    t->range_count = count;
}

// Fills the parcel with arguments and environment variables, pointers to them, and space for thread ids. Writes the
// addresses to the landing.
static void fill_parcel(struct thaw *t, struct landing *landing) {
    const struct process_facts *process = &t->header->process;
    char *text = (char *)process->parcel;
    uint64_t pointers = (t->words_bytes + 7) / 8 * 8;
    uint64_t tids = pointers + 8 * (UINT64_C(2) + t->argument_count + t->variable_count);
    if (tids > process->parcel_bytes)
        thaw_refuse("there are too many arguments and environment variables", "");
    copy_bytes(text, t->words, t->words_bytes);
    char **at = (char **)(text + pointers);
    landing->arguments = (uint64_t)at;
    for (uint32_t i = 0; i < t->argument_count + t->variable_count; i++) {
        if (i == t->argument_count) {
            *at++ = 0;
            landing->environment = (uint64_t)at;
        }
        *at++ = text;
        text += text_bytes(text) + 1;
    }
    if (!t->variable_count) {
        *at++ = 0;
        landing->environment = (uint64_t)at;
    }
    *at = 0;
    uint32_t threads = COUNT(t, SECTION_THREADS);
    int fits = tids + UINT64_C(16) * threads <= process->parcel_bytes;
    t->new_tids = fits ? (int32_t *)(process->parcel + tids) : 0;
    landing->tids = (uint64_t)t->new_tids;
    landing->tid_count = fits ? threads : 0;
    landing->thread_cpu = process->parcel + tids + UINT64_C(8) * threads;
    for (uint32_t i = 0; i < landing->tid_count; i++)
        ((uint64_t *)landing->thread_cpu)[i] = SECTION(t, struct thread_state, SECTION_THREADS)[i].cpu_ns;
    note_ranges(t, process->parcel + tids + (fits ? UINT64_C(16) * threads : 0));
}

// Tells the kernel the addresses of the frozen process's code, data, brk and stack. Without the frozen process's brk,
// glibc's brk() would wrongly report success. With exe_fd -1 the call needs no privilege.
static void set_memory_map(struct thaw *t) {
    const struct process_facts *process = &t->header->process;
    uint64_t words = process->parcel, variables = words;
    for (uint32_t i = 0; i < t->argument_count; i++)
        variables += text_bytes((const char *)variables) + 1;
    struct prctl_mm_map map = {
        .start_code = process->code_start,
        .end_code = process->code_end,
        .start_data = process->data_start,
        .end_data = process->data_end,
        .start_brk = process->brk_start,
        .brk = process->brk_end,
        .start_stack = process->stack_start,
        .arg_start = process->arguments_start,
        .arg_end = process->arguments_end,
        .env_start = variables,
        .env_end = words + t->words_bytes,
        .exe_fd = (uint32_t)-1,
    };
    long result = sys_prctl(PR_SET_MM, PR_SET_MM_MAP, (long)&map, sizeof map, 0);
    if (result < 0)
        thaw_fail("the kernel does not accept the memory map (prctl PR_SET_MM_MAP)", "", result);
}

static void set_signals(struct thaw *t) {
    const struct signal_action *actions = SECTION(t, struct signal_action, SECTION_SIGNALS);
    for (int signal = 1; signal <= 64; signal++)
        if (signal != 9 && signal != 19) // SIGKILL and SIGSTOP have no action
            sys6(SYS_rt_sigaction, signal, (long)&actions[signal - 1], 0, 8, 0, 0);
}

void stage_process(struct thaw *t) {
    const struct process_facts *process = &t->header->process;
    if (ask_for_registers(process->register_permissions))
        thaw_refuse("the frozen process had requested registers (AMX) that this kernel does not grant", "");
    fill_parcel(t, (struct landing *)process->landing);
    set_memory_map(t);
    const char *folder = string_at(t, process->working_folder);
    long result = sys3(SYS_chdir, (long)folder, 0, 0);
    if (result < 0)
        thaw_refuse("the working folder of the frozen process is gone: ", folder);
    sys3(SYS_umask, process->umask, 0, 0);
    set_signals(t);
}

// Sets the numbers by which memory of an earlier image is recognised to those that /proc/self/maps shows for `fd` now.
static void identify(struct thaw *t, struct landed_image *image, int fd, const char *path) {
    struct vma vma = {0};
    long at = sys_mmap(0, IMAGE_PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    int result = SYS_FAILED(at) ? (int)at : vma_at((uint64_t)at, &vma, t->by_text);
    if (result || vma.start > (uint64_t)at)
        thaw_fail("an earlier image is not found among the mappings: ", path, result);
    sys_munmap((uint64_t)at, IMAGE_PAGE);
    image->device = vma.device;
    image->inode = vma.inode;
}

// A process that was frozen several times also maps memory from earlier images, which it recognises by the numbers of
// device and inode. When a file system is mounted again, as after a restart of the machine, its device may get another
// number.
static void identify_again(struct thaw *t, struct landed_image *image) {
    struct stat status;
    if (image->file >= COUNT(t, SECTION_FILES)) { // no mapping has these numbers
        image->device = image->inode = UINT64_MAX;
        return;
    }
    const struct file_identity *file = SECTION(t, struct file_identity, SECTION_FILES) + image->file;
    const char *path = string_at(t, file->path);
    int fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);
    long result = fd < 0 ? fd : sys3(SYS_fstat, fd, (long)&status, 0);
    if (result < 0)
        thaw_fail("an earlier image, from which memory is mapped, cannot be opened: ", path, result);
    if (t->other_boot || status.st_dev != file->device)
        identify(t, image, fd, path);
    sys_close(fd);
}

void stage_landing(struct thaw *t) {
    struct landing *landing = (struct landing *)t->header->process.landing;
    for (uint32_t i = 0; i < landing->image_count && i < LANDING_IMAGES; i++)
        identify_again(t, &landing->images[i]);
    if (landing->image_count >= LANDING_IMAGES)
        thaw_refuse("the process was frozen and thawed too often: eight times at most", "");
    if (t->image_inode) // 0 if all data was copied, so that no memory is mapped from the image
        landing->images[landing->image_count++] = (struct landed_image){
            .device = t->image_device,
            .inode = t->image_inode,
            .file = NO_INDEX,
            .anonymous_offset = t->header->anonymous_offset,
            .ranges = t->ranges_at,
            .range_count = t->range_count,
        };
    int64_t ticks = sys3(SYS_times, 0, 0, 0);
    landing->ticks_ahead = ticks < landing->ticks ? landing->ticks - ticks : 0;
    landing->started_ns = t->started_ns;
    landing->restored = 1;
}
