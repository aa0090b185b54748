// Runs in the process that is frozen. Plans the operations by which thaw will restore all mappings and pages, and
// assigns all data its offset in the image.

#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/stat.h>

#include "disk.h"
#include "freeze_parts.h"
#include "sys.h"

// The kernel can map page-cache memory in units of 2 MiB where address and file offset are equal modulo 2 MiB.
#define HUGE_BYTES (UINT64_C(2) << 20)
#define STACK_USUAL (UINT64_C(8) << 20)
#define STACK_MOST (UINT64_C(256) << 20)
#define COPY_MOST (UINT64_C(4) << 20)
#define COPY_OF_IMAGE_MOST (16 * IMAGE_PAGE)
#define STACK_GUARD (UINT64_C(1) << 20) // the kernel's stack_guard_gap

static const char *path_of(struct freezing *f, const struct mapping *mapping) {
    return (const char *)f->sections[SECTION_STRINGS].base + mapping->path;
}

static int holds_stack_start(struct freezing *f, const struct mapping *mapping) {
    return f->process.stack_start >= mapping->start && f->process.stack_start < mapping->end;
}

// Whether this is the main thread's stack or a part of it: mprotect may have divided it, and each part grows down.
static int is_stack(struct freezing *f, const struct mapping *mapping) {
    return mapping->stack || holds_stack_start(f, mapping);
}

// The end of the main thread's stack if mapping `index` is its lowest part; otherwise 0.
static uint64_t stack_top(struct freezing *f, uint32_t index) {
    const struct mapping *part = AT(f->mappings, struct mapping, index);
    if (index && part[-1].stack && part[-1].end == part->start)
        return 0;
    int is_main = holds_stack_start(f, part);
    for (; ++index < f->mappings.count && part[1].stack && part[1].start == part->end; part++)
        is_main |= holds_stack_start(f, &part[1]);
    return is_main ? part->end : 0;
}

// The start of the main thread's stack, including the addresses into which it could still grow, down to the next
// mapping. Without that reservation, new memory of a copy could be mapped there.
static uint64_t stack_bottom(struct freezing *f, uint32_t index) {
    const struct mapping *stack = AT(f->mappings, struct mapping, index);
    uint64_t top = stack_top(f, index);
    struct rlimit limit = {STACK_USUAL, STACK_USUAL};
    sys6(SYS_prlimit64, 0, RLIMIT_STACK, 0, (long)&limit, 0, 0);
    uint64_t bytes = limit.rlim_cur < STACK_MOST ? limit.rlim_cur / IMAGE_PAGE * IMAGE_PAGE : STACK_MOST;
    uint64_t lowest = index ? stack[-1].end + STACK_GUARD : IMAGE_PAGE;
    uint64_t bottom = top - bytes > lowest ? top - bytes : lowest;
    return top && bottom < stack->start ? bottom : stack->start;
}

// Whether a file is in the folder `disk`, of which each copy gets its own version. That folder may also be mounted at
// /tmp; files that were opened there have a path in /tmp.
static int in_disk(struct freezing *f, const char *path) {
    const char *disk = f->request->disk;
    struct stat here, tmp;
    if (!disk)
        return 0;
    if (disk_holds(disk, path))
        return 1;
    return disk_holds("/tmp", path) && !sys_stat(disk, &here) && !sys_stat("/tmp", &tmp) && here.st_dev == tmp.st_dev &&
           here.st_ino == tmp.st_ino;
}

static int plan_shared(struct freezing *f, struct mapping *mapping, struct operation *to) {
    if (mapping->path == NO_INDEX)
        return refuse(f, "plan", "shared memory without a name is mapped; unmap it before the freeze", "");
    if (text_begins(path_of(f, mapping), "/SYSV"))
        return refuse(f, "plan",
                      "System V shared memory is attached; detach it (shmdt) before the freeze: ", path_of(f, mapping));
    if (mapping->deleted) {
        to->kind = OPERATION_OBJECT;
        to->index = mapping->object = object_of(f, mapping->device, mapping->inode, path_of(f, mapping));
        if (to->index == NO_INDEX)
            return refuse(
                f, "plan",
                "too many mapped files are deleted, or are memory files (memfd); unmap some before the freeze", "");
        struct memory_object *object = AT(f->sections[SECTION_OBJECTS], struct memory_object, to->index);
        uint64_t end = mapping->offset + (mapping->end - mapping->start);
        if (AT(f->sources, struct object_source, to->index)->fd < 0 && object->bytes < end)
            object->bytes = end;
        return 0;
    }
    if (mapping->protection & 2 && !in_disk(f, path_of(f, mapping)))
        return refuse(
            f, "plan",
            "a file is mapped shared and writable: all copies would write into the same file. Map it privately, "
            "unmap it before the freeze, or keep it in the temporary folder: ",
            path_of(f, mapping));
    to->kind = OPERATION_FILE_SHARED;
    to->index = add_file(f, mapping->path, 1);
    return to->index == NO_INDEX
               ? refuse(f, "plan",
                        "a mapped file is gone; leave files where they are, or unmap them before the freeze: ",
                        path_of(f, mapping))
               : 0;
}

// Adds the operation that makes the mapping itself. The operations for its stored pages follow (plan_data).
static int plan_base(struct freezing *f, uint32_t index) {
    struct mapping *mapping = AT(f->mappings, struct mapping, index);
    struct operation *to = table_add(&f->sections[SECTION_OPERATIONS]);
    if (!to)
        return refuse(f, "plan",
                      "memory is in more separate pieces than an image can hold; unmap some, or use larger pieces", "");
    uint64_t start = mapping->start;
    *to = (struct operation){.protection = mapping->protection, .advice = mapping->advice, .index = NO_INDEX};
    mapping->object = NO_INDEX;
    if (mapping->no_reserve)
        to->flags |= OPERATION_NORESERVE;
    if (mapping->stack) {
        to->flags |= OPERATION_STACK | OPERATION_NORESERVE;
        start = stack_bottom(f, index);
    }
    to->address = start;
    to->length = mapping->end - start;
    if (mapping->shared) {
        to->offset = mapping->offset;
        return plan_shared(f, mapping, to);
    }
    if (mapping->path == NO_INDEX || mapping->deleted || mapping->complete || !mapping->inode)
        return 0; // `kind` is 0, OPERATION_ANONYMOUS
    to->kind = OPERATION_FILE;
    to->offset = mapping->offset;
    to->index = add_file(f, mapping->path, 1);
    return to->index == NO_INDEX
               ? refuse(f, "plan",
                        "a mapped file is gone; leave files where they are, or unmap them before the freeze: ",
                        path_of(f, mapping))
               : 0;
}

// Whether the file of this mapping is a program or a library: some mapping of such a file is executable.
static int is_of_program(struct freezing *f, const struct mapping *mapping) {
    for (uint32_t i = 0; i < f->mappings.count; i++) {
        const struct mapping *other = AT(f->mappings, struct mapping, i);
        if (other->inode == mapping->inode && other->device == mapping->device && other->protection & 4)
            return 1;
    }
    return 0;
}

// Whether thaw copies this data instead of mapping the image. It copies the main thread's stack, since the kernel lets
// only anonymous memory grow down. It also copies changed pages of a data file, because after madvise(MADV_DONTNEED)
// they must show the file's contents again; if there are too many of them, they are mapped nevertheless, and that
// advice fails. Changed pages of programs and libraries are mapped, since no code gives that advice for them. In memory
// of an earlier image, up to 16 changed pages in a row are copied: thaw would take longer to map them.
static int is_copied(struct freezing *f, const struct range *range) {
    const struct mapping *mapping = AT(f->mappings, struct mapping, range->mapping);
    if (f->request->flags & FREEZE_COPY || is_stack(f, mapping))
        return 1;
    if (range->of_image)
        return !mapping->complete && range->end - range->start <= COPY_OF_IMAGE_MOST;
    return range->of_file && range->end - range->start <= COPY_MOST && !is_of_program(f, mapping);
}

// Adds the operation that puts stored pages in place. If they cover their whole mapping and the image is mapped, it
// takes the place of the operation that `plan_base` has added.
static int plan_data(struct freezing *f, const struct range *range) {
    const struct mapping *mapping = AT(f->mappings, struct mapping, range->mapping);
    struct table *operations = &f->sections[SECTION_OPERATIONS];
    int copied = is_copied(f, range);
    struct operation *base = AT(*operations, struct operation, operations->count - 1);
    int covered = base->address == range->start && base->length == range->end - range->start;
    struct operation *to = covered && !copied ? base : table_add(operations);
    if (!to)
        return refuse(f, "plan",
                      "memory is in more separate pieces than an image can hold; unmap some, or use larger pieces", "");
    *to = (struct operation){
        .address = range->start,
        .length = range->end - range->start,
        .offset = range->of_file, // a mark, until `place_data` sets the offset
        .kind = copied ? OPERATION_COPY : OPERATION_DATA,
        .index = NO_INDEX,
        .protection = mapping->protection,
        .flags = mapping->no_reserve ? OPERATION_NORESERVE : 0,
        .advice = mapping->advice,
    };
    return 0;
}

static uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

static uint64_t place_sections(struct freezing *f) {
    uint64_t end = IMAGE_PAGE;
    for (int i = 0; i < SECTION_COUNT; i++) {
        struct section_place *place = &f->header.sections[i];
        place->offset = round_up(end, 8);
        place->count = f->sections[i].count;
        place->record_bytes = f->sections[i].record_bytes;
        end = place->offset + (uint64_t)place->count * place->record_bytes;
    }
    return round_up(end, HUGE_BYTES);
}

// Assigns an offset, from `at` on, to each piece of page data that `plan_data` has marked with `of_file` (1: pages of
// files, 0: anonymous memory); returns the offset after the last piece.
static uint64_t place_data(struct freezing *f, uint64_t at, uint64_t of_file) {
    struct table *operations = &f->sections[SECTION_OPERATIONS];
    for (uint32_t i = 0; i < operations->count; i++) {
        struct operation *operation = AT(*operations, struct operation, i);
        if ((operation->kind != OPERATION_DATA && operation->kind != OPERATION_COPY) || operation->offset != of_file)
            continue;
        if (operation->length >= HUGE_BYTES)
            at += (operation->address - at) % HUGE_BYTES;
        operation->offset = at;
        at += operation->length;
        f->report->data_bytes += operation->length;
    }
    return at;
}

static uint64_t place_contents(struct freezing *f, uint64_t at) {
    struct table *objects = &f->sections[SECTION_OBJECTS];
    for (uint32_t i = 0; i < objects->count; i++) {
        struct memory_object *object = AT(*objects, struct memory_object, i);
        object->offset = at;
        at = round_up(at + object->bytes, IMAGE_PAGE);
        f->report->data_bytes += object->bytes;
    }
    for (uint32_t i = 0; i < f->pipes.count; i++) {
        const struct pipe_contents *contents = AT(f->pipes, struct pipe_contents, i);
        if (!contents->bytes)
            continue;
        AT(f->sections[SECTION_DESCRIPTORS], struct descriptor, contents->descriptor)->data_offset = at;
        at = round_up(at + contents->bytes, IMAGE_PAGE);
    }
    return at;
}

int plan(struct freezing *f) {
    uint32_t next = 0;
    for (uint32_t i = 0; i < f->mappings.count; i++) {
        int result = plan_base(f, i);
        for (; !result && next < f->ranges.count && AT(f->ranges, struct range, next)->mapping == i; next++)
            result = plan_data(f, AT(f->ranges, struct range, next));
        if (result)
            return result;
    }
    f->header.data_offset = place_sections(f);
    // Offsets below IMAGE_PAGE are still marks. Pages of files (mark 1) are placed first, then anonymous memory (0).
    uint64_t at = place_data(f, f->header.data_offset, 1);
    f->header.anonymous_offset = at = round_up(at, IMAGE_PAGE);
    at = place_data(f, at, 0);
    f->header.file_bytes = place_contents(f, at);
    f->report->data_bytes += (uint64_t)f->sections[SECTION_WORDS].count * sizeof(struct changed_word);
    return fault_point(f, "plan");
}
