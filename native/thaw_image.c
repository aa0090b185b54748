// Runs in thaw's address space. Opens the image, and refuses an image that cannot be trusted or thawed here.

#include <fcntl.h>
#include <linux/mman.h>
#include <sys/stat.h>

#include "check.h"
#include "host.h"
#include "thaw.h"

#define MAX_TABLES_BYTES (UINT64_C(1) << 30)

void open_image(struct thaw *t) {
    t->image_fd = sys_open(t->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); // opening a FIFO must not wait
    if (t->image_fd < 0)
        thaw_refuse(t->image_fd == -2 ? "there is no image " : "the image cannot be opened: ", t->path);
}

void stage_open(struct thaw *t) {
    struct stat status;
    if (!t->image_fd)
        open_image(t);
    int fd = t->image_fd;
    long result = sys3(SYS_fstat, fd, (long)&status, 0);
    if (result < 0 || !S_ISREG(status.st_mode))
        thaw_refuse("this is not a regular file: ", t->path);
    // An image holds code and secrets: whoever can write it could run code as the user who runs thaw, and whoever can
    // read it learns the secrets.
    if (status.st_uid != (uint32_t)sys3(SYS_geteuid, 0, 0, 0))
        thaw_refuse("the image belongs to another user: ", t->path);
    if (status.st_mode & 077)
        thaw_refuse("the image may be read or written by other users (its mode must be 0600): ", t->path);
    struct image_header header;
    uint64_t bytes = (uint64_t)status.st_size;
    if (bytes < IMAGE_PAGE || sys_pread(fd, &header, sizeof header, 0) != sizeof header)
        thaw_refuse("the file is too short for an image: ", t->path);
    const struct section_place *last = &header.sections[SECTION_COUNT - 1];
    uint64_t tables = last->offset + (uint64_t)last->count * last->record_bytes;
    if (tables > bytes || tables > MAX_TABLES_BYTES || tables < IMAGE_PAGE || last->offset > bytes)
        tables = IMAGE_PAGE; // the image is damaged, which `check` reports
    long at = sys_mmap(ZONE_TABLES, tables, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_POPULATE, fd, 0);
    if (SYS_FAILED(at))
        thaw_fail("the image's tables cannot be mapped", "", at);
    t->header = (const struct image_header *)at;
    t->tables_bytes = tables;
}

// Refuses the image if the frozen process cannot continue on this machine. Since one start of a machine its kernel and
// CPU are the same, so the CPU is not examined then: in a virtual machine, each CPUID takes some microseconds.
static void machine_check(struct thaw *t) {
    const struct host_key *frozen = &t->header->host;
    struct host_key now;
    char lacking[CPU_DETAIL_BYTES];
    long result = host_describe_start(&now);
    if (result < 0)
        thaw_fail("the machine cannot be described", "", result);
    if (*now.boot_id && text_equal(frozen->boot_id, now.boot_id)) // a container may hide it behind an empty file
        return;
    t->other_boot = 1;
    cpu_describe(&now);
    const char *difference = host_difference(frozen, &now, lacking);
    if (difference)
        thaw_refuse(difference, lacking);
}

void stage_check(struct thaw *t) {
    struct stat status;
    struct check_failure failure;
    sys3(SYS_fstat, t->image_fd, (long)&status, 0);
    if (image_check(t->header, t->tables_bytes, (uint64_t)status.st_size, &failure)) {
        char detail[40];
        struct writer out = text_writer(detail, sizeof detail);
        put_text(&out, " (at ");
        put_number(&out, failure.where, 10);
        put_text(&out, ")");
        thaw_refuse(failure.what, detail);
    }
    machine_check(t);
    clocks_go_on(t);
    rights_check(t);
}

void file_must_match(struct thaw *t, uint32_t index, int fd) {
    const struct file_identity *file = SECTION(t, struct file_identity, SECTION_FILES) + index;
    const char *path = string_at(t, file->path);
    struct stat status;
    if (fd < 0)
        thaw_refuse("a file of the frozen process is gone: ", path);
    long result = sys3(SYS_fstat, fd, (long)&status, 0);
    if (result < 0)
        thaw_fail("a file cannot be examined: ", path, result);
    if (!file->checked)
        return;
    int64_t modified_ns = status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec;
    // A file in the copy's own temporary folder may be a copy of the frozen process's file, so its inode may differ.
    // Size and time must be the same.
    int other = status.st_ino != file->inode && !is_own_file(t, path);
    if (other || (uint64_t)status.st_size != file->bytes || modified_ns != file->modified_ns)
        thaw_refuse("a file has changed since the freeze: ", path);
}
