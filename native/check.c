// Checks that offsets, counts and values in the tables of an image are valid, so that thaw can use them without checks
// of its own. Runs in thaw's address space.

#include "check.h"

#include "image.h"
#include "sys.h"

struct checking {
    const unsigned char *base;
    const struct image_header *header;
    uint64_t tables_bytes, file_bytes;
    struct check_failure *failure;
};

static int bad(struct checking *c, const char *what, uint64_t where) {
    c->failure->what = what;
    c->failure->where = where;
    return -1;
}

static const void *records(struct checking *c, enum section section) {
    return c->base + c->header->sections[section].offset;
}

static uint32_t count(struct checking *c, enum section section) {
    return c->header->sections[section].count;
}

static int in_zone(uint64_t start, uint64_t bytes) {
    return start < ZONE_START + ZONE_BYTES && start + bytes > ZONE_START;
}

static int page_range(uint64_t start, uint64_t bytes) {
    return !(start % IMAGE_PAGE) && !(bytes % IMAGE_PAGE) && bytes && start >= IMAGE_PAGE && start < USER_SPACE_END &&
           bytes <= USER_SPACE_END - start && !in_zone(start, bytes);
}

static int in_data(struct checking *c, uint64_t offset, uint64_t bytes) {
    return !(offset % IMAGE_PAGE) && offset >= c->header->data_offset && offset <= c->file_bytes &&
           bytes <= c->file_bytes - offset;
}

static int check_header(struct checking *c) {
    const struct image_header *header = c->header;
    if (c->tables_bytes < IMAGE_PAGE)
        return bad(c, "the file is too short for an image", c->tables_bytes);
    if (__builtin_memcmp(header->magic, IMAGE_MAGIC, sizeof header->magic))
        return bad(c, "the file is not an image", 0);
    if (header->layout != IMAGE_LAYOUT)
        return bad(c, "the image has another layout version than this thawd reads; freeze it again", header->layout);
    if (header->architecture != ARCHITECTURE)
        return bad(c, "the image is of another architecture", header->architecture);
    struct image_header blank;
    copy_bytes(&blank, header, sizeof blank);
    blank.header_checksum = 0;
    if (checksum(&blank, sizeof blank) != header->header_checksum)
        return bad(c, "the image's header is damaged (checksum)", offsetof(struct image_header, header_checksum));
    if (header->file_bytes != c->file_bytes)
        return bad(c, "the image is cut off or has grown", c->file_bytes);
    if (header->data_offset % IMAGE_PAGE || header->data_offset < IMAGE_PAGE || header->data_offset > c->file_bytes)
        return bad(c, "the image's data begins at an offset that is not valid", header->data_offset);
    if (header->anonymous_offset % IMAGE_PAGE || header->anonymous_offset < header->data_offset ||
        header->anonymous_offset > header->file_bytes)
        return bad(c, "the image's data of anonymous memory begins at an offset that is not valid",
                   header->anonymous_offset);
    if (header->flags & ~(uint32_t)(IMAGE_COPY | IMAGE_INSIDE_VDSO))
        return bad(c, "the image has unknown flags", header->flags);
    return 0;
}

static int check_sections(struct checking *c) {
    static const uint32_t record_bytes[SECTION_COUNT] = {
        sizeof(struct operation),
        sizeof(struct thread_state),
        sizeof(struct file_identity),
        sizeof(struct memory_object),
        sizeof(struct descriptor),
        sizeof(struct epoll_watch),
        sizeof(struct socket_state),
        sizeof(struct socket_option),
        sizeof(struct ring_state),
        sizeof(struct signal_action),
        sizeof(struct changed_word),
        1,
        1,
    };
    uint64_t end = IMAGE_PAGE;
    for (uint32_t i = 0; i < SECTION_COUNT; i++) {
        const struct section_place *place = &c->header->sections[i];
        uint64_t bytes = (uint64_t)place->count * place->record_bytes;
        if (place->record_bytes != record_bytes[i] || place->offset != (end + 7) / 8 * 8 ||
            place->offset > c->tables_bytes || bytes > c->tables_bytes - place->offset)
            return bad(c, "a section of the image has an offset or a size that is not valid", i);
        end = place->offset + bytes;
    }
    if (end > c->header->data_offset)
        return bad(c, "the image's data begins inside its tables", end);
    if (checksum(c->base + IMAGE_PAGE, end - IMAGE_PAGE) != c->header->tables_checksum)
        return bad(c, "the image's tables are damaged (checksum)", IMAGE_PAGE);
    if (!count(c, SECTION_OPERATIONS) || !count(c, SECTION_THREADS) || count(c, SECTION_SIGNALS) != 64)
        return bad(c, "the image has no operations, no threads or not all signal actions", 0);
    if (!count(c, SECTION_STRINGS) || ((const char *)records(c, SECTION_STRINGS))[count(c, SECTION_STRINGS) - 1])
        return bad(c, "the image's strings do not end with a NUL", 0);
    return 0;
}

static int check_process(struct checking *c) {
    const struct process_facts *process = &c->header->process;
    const struct host_key *host = &c->header->host;
    if (host->kernel_release[sizeof host->kernel_release - 1] || host->boot_id[sizeof host->boot_id - 1] ||
        host->kernel_version[sizeof host->kernel_version - 1] || host->cpu_vendor[sizeof host->cpu_vendor - 1])
        return bad(c, "a text in the description of the machine does not end with a NUL",
                   offsetof(struct image_header, host));
    uint32_t strings = count(c, SECTION_STRINGS);
    if (process->working_folder >= strings || process->more_groups >= strings || c->header->glibc >= strings)
        return bad(c, "a string of the process is outside the section of strings", 0);
    if (!page_range(process->vdso_start, process->vdso_bytes) || process->vdso_bytes != count(c, SECTION_VDSO) ||
        (process->vvar_bytes && !page_range(process->vvar_start, process->vvar_bytes)))
        return bad(c, "the frozen vDSO has an address or a size that is not valid", process->vdso_start);
    if (!page_range(process->parcel, process->parcel_bytes) || process->landing % 8 || !process->landing ||
        process->landing >= USER_SPACE_END - IMAGE_PAGE || in_zone(process->landing, IMAGE_PAGE))
        return bad(c, "the memory for a copy's arguments (landing or parcel) has an address that is not valid",
                   process->landing);
    return 0;
}

static int check_operation(struct checking *c, const struct operation *operation, uint32_t i) {
    if (!page_range(operation->address, operation->length) || operation->kind >= OPERATION_KINDS ||
        operation->protection & ~7u || operation->offset % IMAGE_PAGE || operation->offset >> 60)
        return bad(c, "the image's record of an operation is not valid", i);
    switch (operation->kind) {
    case OPERATION_ANONYMOUS:
        return 0;
    case OPERATION_FILE:
    case OPERATION_FILE_SHARED:
        return operation->index < count(c, SECTION_FILES)
                   ? 0
                   : bad(c, "the image's record of an operation refers to no file", i);
    case OPERATION_OBJECT: {
        if (operation->index >= count(c, SECTION_OBJECTS))
            return bad(c, "the image's record of an operation refers to no memory object", i);
        return 0;
    }
    default:
        return in_data(c, operation->offset, operation->length)
                   ? 0
                   : bad(c, "an operation's data is outside the image's data", i);
    }
}

static int check_descriptor(struct checking *c, const struct descriptor *table, uint32_t i) {
    const struct descriptor *descriptor = &table[i];
    int files = descriptor->kind == DESCRIPTOR_FILE || descriptor->kind == DESCRIPTOR_DEVICE;
    if (descriptor->kind >= DESCRIPTOR_KINDS || descriptor->number < 0 || descriptor->number > 1 << 24 ||
        (i && descriptor->number <= table[i - 1].number))
        return bad(c, "the image's record of a descriptor is not valid", i);
    if ((files && descriptor->index >= count(c, SECTION_FILES)) ||
        (descriptor->kind == DESCRIPTOR_OBJECT && descriptor->index >= count(c, SECTION_OBJECTS)) ||
        (descriptor->kind == DESCRIPTOR_COPY && descriptor->index >= i) ||
        (descriptor->kind == DESCRIPTOR_RING && descriptor->index >= count(c, SECTION_RINGS)) ||
        (descriptor->kind == DESCRIPTOR_SOCKET && descriptor->index >= count(c, SECTION_SOCKETS)) ||
        (descriptor->kind == DESCRIPTOR_SOCKETPAIR && descriptor->index > 1 << 24))
        return bad(c, "the image's record of a descriptor refers to a record that does not exist", i);
    if (descriptor->data_bytes && !in_data(c, descriptor->data_offset, descriptor->data_bytes))
        return bad(c, "the data of a pipe or a socket is outside the image's data", i);
    return 0;
}

static int check_socket(struct checking *c, const struct socket_state *state, uint32_t i) {
    uint32_t options = count(c, SECTION_OPTIONS);
    if (state->revival >= SOCKET_REVIVALS || state->local_bytes > SOCKET_ADDRESS_BYTES ||
        state->peer_bytes > SOCKET_ADDRESS_BYTES || state->first_option > options ||
        state->option_count > options - state->first_option)
        return bad(c, "the image's record of a socket is not valid", i);
    return 0;
}

static int check_rings(struct checking *c) {
    const struct ring_state *rings = records(c, SECTION_RINGS);
    for (uint32_t i = 0; i < count(c, SECTION_RINGS); i++)
        if (!page_range(rings[i].rings, rings[i].rings_bytes) ||
            !page_range(rings[i].requests, rings[i].requests_bytes) || !rings[i].entries ||
            rings[i].entries > rings[i].requests_bytes / 64 || rings[i].entries > rings[i].rings_bytes / 4)
            return bad(c, "the image's record of an io_uring is not valid", i);
    return 0;
}

static int check_sockets(struct checking *c) {
    const struct socket_state *sockets = records(c, SECTION_SOCKETS);
    for (uint32_t i = 0; i < count(c, SECTION_SOCKETS); i++)
        if (check_socket(c, &sockets[i], i))
            return -1;
    const struct socket_option *options = records(c, SECTION_OPTIONS);
    for (uint32_t i = 0; i < count(c, SECTION_OPTIONS); i++)
        if (options[i].bytes > SOCKET_OPTION_BYTES)
            return bad(c, "the image's record of a socket's option is not valid", i);
    return 0;
}

static int check_words(struct checking *c) {
    const struct changed_word *words = records(c, SECTION_WORDS);
    for (uint32_t i = 0; i < count(c, SECTION_WORDS); i++)
        if (words[i].address % 8 || words[i].address < IMAGE_PAGE || words[i].address >= USER_SPACE_END ||
            in_zone(words[i].address, 8) || (i && words[i].address <= words[i - 1].address))
            return bad(c, "the image's record of a changed word has an address that is not valid", i);
    return 0;
}

static int check_threads(struct checking *c) {
    const struct thread_state *threads = records(c, SECTION_THREADS);
    for (uint32_t i = 0; i < count(c, SECTION_THREADS); i++)
        if (threads[i].context % 8 || threads[i].context < 65536 || threads[i].context >= USER_SPACE_END ||
            in_zone(threads[i].context, 65536) || threads[i].name[15])
            return bad(c, "the image's record of a thread is not valid", i);
    return 0;
}

int image_check(const void *tables, uint64_t tables_bytes, uint64_t file_bytes, struct check_failure *failure) {
    struct checking checking = {tables, tables, tables_bytes, file_bytes, failure}, *c = &checking;
    if (check_header(c) || check_sections(c) || check_process(c) || check_threads(c))
        return -1;
    const struct operation *operations = records(c, SECTION_OPERATIONS);
    for (uint32_t i = 0; i < count(c, SECTION_OPERATIONS); i++)
        if (check_operation(c, &operations[i], i))
            return -1;
    const struct file_identity *files = records(c, SECTION_FILES);
    for (uint32_t i = 0; i < count(c, SECTION_FILES); i++)
        if (files[i].path >= count(c, SECTION_STRINGS))
            return bad(c, "a file's path is outside the section of strings", i);
    const struct memory_object *objects = records(c, SECTION_OBJECTS);
    for (uint32_t i = 0; i < count(c, SECTION_OBJECTS); i++)
        if (objects[i].name >= count(c, SECTION_STRINGS) || !in_data(c, objects[i].offset, objects[i].bytes))
            return bad(c, "a memory object's data is outside the image's data", i);
    const struct descriptor *descriptors = records(c, SECTION_DESCRIPTORS);
    for (uint32_t i = 0; i < count(c, SECTION_DESCRIPTORS); i++)
        if (check_descriptor(c, descriptors, i))
            return -1;
    return check_sockets(c) || check_rings(c) || check_words(c) ? -1 : 0;
}
