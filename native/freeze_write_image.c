// Runs in the process that is frozen. Writes the image: the sections and the page data, then the header.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>

#include "freeze_parts.h"
#include "host.h"
#include "sys.h"

// Large writes make the page cache use large folios, which the kernel can map in units of 2 MiB in each copy.
#define CHUNK_BYTES (UINT64_C(64) << 20)

// Takes a pending SIGXFSZ, which the kernel sends when the file would exceed a limit. This code runs in a signal
// handler with all signals blocked. If the signal were delivered when the handler ends, it would kill the process.
static void take_signal_of_limit(void) {
    const uint64_t set = UINT64_C(1) << (SIGXFSZ - 1);
    const struct timespec now = {0, 0};
    sys6(SYS_rt_sigtimedwait, (long)&set, 0, (long)&now, sizeof set, 0, 0);
}

static int fail_writing(struct freezing *f, long error) {
    if (error == -EFBIG)
        take_signal_of_limit();
    return freeze_ends(f, FREEZE_FAILED, "output", (int)-error,
                       "the image cannot be written; free some space, or choose another folder: ", f->request->path);
}

// Writes a page that pwrite cannot read from its address, because it is protected or past the end of its file. In the
// latter case the image gets a hole.
static long write_page(struct freezing *f, uint64_t address, uint64_t offset) {
    unsigned char *page = f->text.base;
    if (sys_pread(f->memory_fd, page, IMAGE_PAGE, address) != IMAGE_PAGE)
        return IMAGE_PAGE;
    return sys_pwrite(f->image_fd, page, IMAGE_PAGE, offset);
}

static int write_memory(struct freezing *f, uint64_t address, uint64_t bytes, uint64_t offset) {
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t chunk = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
        long got = sys_pwrite(f->image_fd, (const void *)(address + done), chunk, offset + done);
        if (got == -EFAULT)
            got = write_page(f, address + done, offset + done);
        if (got <= 0)
            return fail_writing(f, got ? got : -EIO);
        // Counts whole pages only, so that a page that was written in part is written again.
        done += (uint64_t)got == bytes - done ? (uint64_t)got : (uint64_t)got / IMAGE_PAGE * IMAGE_PAGE;
        if (got < IMAGE_PAGE && done < bytes && (uint64_t)got < chunk)
            return fail_writing(f, -ENOSPC);
        sys6(SYS_sync_file_range, f->image_fd, (long)offset, (long)done, 2 /* SYNC_FILE_RANGE_WRITE */, 0, 0);
    }
    return 0;
}

static int write_object(struct freezing *f, uint32_t index) {
    const struct memory_object *object = AT(f->sections[SECTION_OBJECTS], struct memory_object, index);
    int fd = AT(f->sources, struct object_source, index)->fd;
    if (fd >= 0) {
        uint64_t at = 0;
        while (at < object->bytes) {
            uint64_t left = object->bytes - at, most = f->text.capacity_bytes;
            long got = sys_pread(fd, f->text.base, left < most ? left : most, at);
            if (got <= 0)
                return fail(f, "output", got ? got : -EIO, "a deleted file that is open cannot be read");
            int result = write_memory(f, (uint64_t)f->text.base, (uint64_t)got, object->offset + at);
            if (result)
                return result;
            at += (uint64_t)got;
        }
        return 0;
    }
    for (uint32_t i = 0; i < f->mappings.count; i++) {
        const struct mapping *mapping = AT(f->mappings, struct mapping, i);
        if (!mapping->shared || mapping->object != index)
            continue;
        int result = write_memory(f, mapping->start, mapping->end - mapping->start, object->offset + mapping->offset);
        if (result)
            return result;
    }
    return 0;
}

static int write_data(struct freezing *f) {
    int result = 0;
    const struct table *operations = &f->sections[SECTION_OPERATIONS];
    for (uint32_t i = 0; !result && i < operations->count; i++) {
        const struct operation *operation = AT(*operations, struct operation, i);
        if (operation->kind == OPERATION_DATA || operation->kind == OPERATION_COPY)
            result = write_memory(f, operation->address, operation->length, operation->offset);
    }
    for (uint32_t i = 0; !result && i < f->pipes.count; i++) {
        const struct pipe_contents *contents = AT(f->pipes, struct pipe_contents, i);
        uint64_t offset = AT(f->sections[SECTION_DESCRIPTORS], struct descriptor, contents->descriptor)->data_offset;
        result = write_memory(f, (uint64_t)contents->from, contents->bytes, offset);
    }
    for (uint32_t i = 0; !result && i < f->sections[SECTION_OBJECTS].count; i++)
        result = write_object(f, i);
    return result;
}

static int write_tables(struct freezing *f) {
    struct image_header *header = &f->header;
    // The sections are separate in scratch memory. For the checksum they are copied together in the file's layout.
    const struct section_place *last = &header->sections[SECTION_COUNT - 1];
    uint64_t bytes = last->offset + (uint64_t)last->count * last->record_bytes - IMAGE_PAGE;
    unsigned char *joined =
        (unsigned char *)sys_mmap(0, bytes, 3, 0x8000 | 0x20 | 1 /* POPULATE, ANONYMOUS, SHARED */, -1, 0);
    if (SYS_FAILED(joined))
        return fail(f, "output", (long)joined, "there is no memory for the image's tables");
    for (int i = 0; i < SECTION_COUNT; i++)
        copy_bytes(joined + header->sections[i].offset - IMAGE_PAGE, f->sections[i].base,
                   (uint64_t)f->sections[i].count * f->sections[i].record_bytes);
    header->tables_checksum = checksum(joined, bytes);
    header->header_checksum = checksum(header, sizeof *header);
    int result = write_memory(f, (uint64_t)joined, bytes, IMAGE_PAGE);
    sys_munmap((uint64_t)joined, bytes);
    return result ? result : write_memory(f, (uint64_t)header, sizeof *header, 0);
}

int output(struct freezing *f) {
    struct image_header *header = &f->header;
    copy_bytes(header->magic, IMAGE_MAGIC, sizeof header->magic);
    header->layout = IMAGE_LAYOUT;
    header->architecture = ARCHITECTURE;
    header->flags = (f->request->flags & FREEZE_COPY ? IMAGE_COPY : 0) | (f->inside_vdso ? IMAGE_INSIDE_VDSO : 0);
    header->process = f->process;
    int result = host_describe(&header->host);
    if (result < 0)
        return fail(f, "output", result, "the machine cannot be described (boot_id, uname)");
    result = (int)sys3(SYS_ftruncate, f->image_fd, (long)header->file_bytes, 0);
    if (result < 0)
        return fail_writing(f, result);
    result = write_data(f);
    if (!result)
        result = write_tables(f);
    f->report->image_bytes = header->file_bytes;
    return result ? result : fault_point(f, "output");
}
