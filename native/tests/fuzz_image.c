// Runs as a separate test program. Passes damaged images to the parser of images (check.c). If the parser accepts one,
// the program reads every record and text in its tables, and checks every offset on which thaw relies.
//
// Built with libFuzzer (clang -fsanitize=fuzzer -DWITH_LIBFUZZER), the program is an ordinary fuzz target. Built with
// gcc, it has its own loop: `fuzz_image IMAGE RUNS SEED` changes the tables of a valid image at random. The parser
// would refuse nearly all of these images because of a wrong checksum, before it reads the changed field. So in three
// of four runs the checksums are corrected. The tables end directly before a page that cannot be read, so a read past
// them is found even without a sanitizer.

#define _GNU_SOURCE
#include "../check.h"
#include "../image.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES (64ul << 20)

static volatile uint64_t sum; // a sum of everything read, so that the compiler does not remove the reads

static void need(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "the parser accepted: %s\n", what);
        abort();
    }
}

static void read_bytes(const unsigned char *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        sum += bytes[i];
}

static void read_text(const unsigned char *tables, uint32_t offset) {
    const struct section_place *strings = &((const struct image_header *)tables)->sections[SECTION_STRINGS];
    need(offset < strings->count, "a text outside of section strings");
    sum += strlen((const char *)tables + strings->offset + offset);
    need(offset + strlen((const char *)tables + strings->offset + offset) < strings->count, "a text without end");
}

static void need_data(const struct image_header *header, uint64_t offset, uint64_t bytes, const char *what) {
    need(offset >= header->data_offset && offset <= header->file_bytes && bytes <= header->file_bytes - offset, what);
}

static void need_place(uint64_t start, uint64_t bytes) {
    need(start + bytes > start && start + bytes <= UINT64_C(0x800000000000), "memory beyond the address space");
    need(start + bytes <= ZONE_START || start >= ZONE_START + ZONE_BYTES, "memory in the zone of thaw");
}

static void use_operations(const unsigned char *tables, const struct image_header *header) {
    const struct section_place *place = &header->sections[SECTION_OPERATIONS];
    const struct operation *operations = (const void *)(tables + place->offset);
    for (uint32_t i = 0; i < place->count; i++) {
        const struct operation *operation = &operations[i];
        need(operation->kind < OPERATION_KINDS, "an operation of unknown kind");
        need_place(operation->address, operation->length);
        if (operation->kind == OPERATION_FILE || operation->kind == OPERATION_FILE_SHARED)
            need(operation->index < header->sections[SECTION_FILES].count, "an operation without a file");
        if (operation->kind == OPERATION_OBJECT)
            need(operation->index < header->sections[SECTION_OBJECTS].count, "an operation without an object");
        if (operation->kind == OPERATION_DATA || operation->kind == OPERATION_COPY)
            need_data(header, operation->offset, operation->length, "data of an operation outside of the file");
    }
}

static void use_descriptors(const unsigned char *tables, const struct image_header *header) {
    const struct section_place *place = &header->sections[SECTION_DESCRIPTORS];
    const struct descriptor *descriptors = (const void *)(tables + place->offset);
    for (uint32_t i = 0; i < place->count; i++) {
        const struct descriptor *descriptor = &descriptors[i];
        need(descriptor->number >= 0 && descriptor->kind < DESCRIPTOR_KINDS, "a descriptor of unknown kind");
        if (descriptor->kind == DESCRIPTOR_FILE || descriptor->kind == DESCRIPTOR_DEVICE)
            need(descriptor->index < header->sections[SECTION_FILES].count, "a descriptor without a file");
        if (descriptor->kind == DESCRIPTOR_OBJECT)
            need(descriptor->index < header->sections[SECTION_OBJECTS].count, "a descriptor without an object");
        if (descriptor->kind == DESCRIPTOR_COPY)
            need(descriptor->index < i, "a descriptor that copies a later one");
        if (descriptor->kind == DESCRIPTOR_RING)
            need(descriptor->index < header->sections[SECTION_RINGS].count, "a descriptor without a ring");
        if (descriptor->kind == DESCRIPTOR_SOCKET)
            need(descriptor->index < header->sections[SECTION_SOCKETS].count, "a descriptor without a socket");
        if (descriptor->data_bytes)
            need_data(header, descriptor->data_offset, descriptor->data_bytes,
                      "contents of a pipe outside of the file");
    }
}

static void use_files_and_objects(const unsigned char *tables, const struct image_header *header) {
    const struct section_place *place = &header->sections[SECTION_FILES];
    const struct file_identity *files = (const void *)(tables + place->offset);
    for (uint32_t i = 0; i < place->count; i++)
        read_text(tables, files[i].path);
    place = &header->sections[SECTION_OBJECTS];
    const struct memory_object *objects = (const void *)(tables + place->offset);
    for (uint32_t i = 0; i < place->count; i++) {
        read_text(tables, objects[i].name);
        need_data(header, objects[i].offset, objects[i].bytes, "an object outside of the file");
    }
}

static void use_sockets(const unsigned char *tables, const struct image_header *header) {
    const struct section_place *place = &header->sections[SECTION_SOCKETS];
    const struct socket_state *sockets = (const void *)(tables + place->offset);
    for (uint32_t i = 0; i < place->count; i++) {
        need(sockets[i].local_bytes <= SOCKET_ADDRESS_BYTES && sockets[i].peer_bytes <= SOCKET_ADDRESS_BYTES,
             "an address longer than its field");
        need((uint64_t)sockets[i].first_option + sockets[i].option_count <= header->sections[SECTION_OPTIONS].count,
             "options outside of their section");
    }
    place = &header->sections[SECTION_OPTIONS];
    const struct socket_option *options = (const void *)(tables + place->offset);
    for (uint32_t i = 0; i < place->count; i++)
        need(options[i].bytes <= SOCKET_OPTION_BYTES, "an option longer than its field");
}

// Checks and reads everything on which thaw relies after the parser has accepted an image.
static void use(const unsigned char *tables, uint64_t tables_bytes) {
    const struct image_header *header = (const void *)tables;
    for (int i = 0; i < SECTION_COUNT; i++) {
        const struct section_place *place = &header->sections[i];
        uint64_t bytes = (uint64_t)place->count * place->record_bytes;
        need(place->offset <= tables_bytes && bytes <= tables_bytes - place->offset, "a section outside of the tables");
        read_bytes(tables + place->offset, bytes);
    }
    need(header->sections[SECTION_SIGNALS].count == 64 && header->sections[SECTION_THREADS].count, "no threads");
    use_operations(tables, header);
    use_descriptors(tables, header);
    use_files_and_objects(tables, header);
    use_sockets(tables, header);
    read_text(tables, header->glibc);
    read_text(tables, header->process.working_folder);
    const struct section_place *place = &header->sections[SECTION_THREADS];
    const struct thread_state *threads = (const void *)(tables + place->offset);
    for (uint32_t i = 0; i < place->count; i++)
        sum += strnlen(threads[i].name, sizeof threads[i].name);
}

static int accepted(const unsigned char *tables, uint64_t tables_bytes, uint64_t file_bytes) {
    struct check_failure failure = {0};
    if (image_check(tables, tables_bytes, file_bytes, &failure) == 0) {
        use(tables, tables_bytes);
        return 1;
    }
    if (!failure.what || !*failure.what) {
        fprintf(stderr, "the parser refused an image without a reason\n");
        abort();
    }
    return 0;
}

#ifdef WITH_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    void *aligned = aligned_alloc(IMAGE_PAGE, (count / IMAGE_PAGE + 1) * IMAGE_PAGE);
    memcpy(aligned, bytes, count);
    accepted(aligned, count, count + (4ul << 20));
    free(aligned);
    return 0;
}
#else
static uint64_t random_state;

static uint64_t draw(uint64_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

// Returns a number that parsers often handle wrongly: a boundary value, one close to `near`, or any number.
static uint64_t odd_number(uint64_t near) {
    static const uint64_t odd[] = {0,
                                   1,
                                   2,
                                   7,
                                   8,
                                   4095,
                                   4096,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x100000000,
                                   ZONE_START,
                                   ZONE_START - 4096,
                                   0x7ffffffff000,
                                   0x7fffffffffffffff,
                                   ~UINT64_C(0)};
    uint64_t kind = draw(4);
    return kind == 0 ? odd[draw(sizeof odd / sizeof *odd)] : kind == 1 ? near + draw(16) - 8 : draw(~UINT64_C(0));
}

// Changes 1, 2, 4 or 8 aligned bytes, more often in the header and at the beginning of the sections than elsewhere.
static void change(unsigned char *tables, uint64_t used_bytes) {
    const struct image_header *header = (const void *)tables;
    uint64_t width = UINT64_C(1) << draw(4), at = draw(used_bytes / width) * width, value = 0;
    uint64_t section = header->sections[draw(SECTION_COUNT)].offset;
    if (draw(3) == 0)
        at = draw(sizeof *header / width) * width;
    else if (draw(3) == 0 && section < used_bytes)
        at = (section / width + draw(8)) * width;
    if (at + width > used_bytes)
        return;
    memcpy(&value, tables + at, width);
    value = odd_number(value);
    memcpy(tables + at, &value, width);
}

static void mend_checksums(unsigned char *tables, uint64_t tables_bytes) {
    struct image_header *header = (void *)tables;
    const struct section_place *last = &header->sections[SECTION_COUNT - 1];
    uint64_t end = last->offset + (uint64_t)last->count * last->record_bytes;
    if (end >= IMAGE_PAGE && end <= tables_bytes)
        header->tables_checksum = checksum(tables + IMAGE_PAGE, end - IMAGE_PAGE);
    header->header_checksum = 0;
    header->header_checksum = checksum(header, sizeof *header);
}

// Returns memory of this size that is followed by a page that cannot be read.
static unsigned char *fenced(uint64_t bytes) {
    uint64_t whole = (bytes + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
    unsigned char *area = mmap(NULL, whole + IMAGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED || mprotect(area + whole, IMAGE_PAGE, PROT_NONE) != 0)
        exit(2);
    return area + whole - bytes;
}

int main(int argc, char **argv) {
    struct stat about;
    int fd = argc == 4 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size < IMAGE_PAGE) {
        fprintf(stderr, "usage: %s IMAGE RUNS SEED\n", argv[0]);
        return 2;
    }
    uint64_t file_bytes = (uint64_t)about.st_size, runs = strtoull(argv[2], NULL, 10), yes = 0;
    random_state = strtoull(argv[3], NULL, 10) * 2 + 1;
    struct image_header header;
    if (pread(fd, &header, sizeof header, 0) != sizeof header || header.data_offset > MOST_BYTES)
        return 2;
    const struct section_place *last = &header.sections[SECTION_COUNT - 1];
    uint64_t used = last->offset + last->count, tables_bytes = header.data_offset;
    unsigned char *original = fenced(tables_bytes), *tables = fenced(tables_bytes), *cut = fenced(IMAGE_PAGE * 2);
    if (pread(fd, original, tables_bytes, 0) != (ssize_t)tables_bytes ||
        !accepted(original, tables_bytes, file_bytes)) {
        fprintf(stderr, "%s is not a valid image\n", argv[1]);
        return 2;
    }
    for (uint64_t i = 0; i < runs; i++) {
        memcpy(tables, original, used);
        for (uint64_t changes = 1 + draw(4); changes > 0; changes--)
            change(tables, used);
        if (draw(4))
            mend_checksums(tables, tables_bytes);
        uint64_t bytes = draw(16) ? tables_bytes : draw(2 * IMAGE_PAGE);
        if (bytes < 2 * IMAGE_PAGE) { // an image that was cut off, directly before the unreadable page
            memcpy(cut + 2 * IMAGE_PAGE - bytes / 8 * 8, tables, bytes / 8 * 8);
            yes += (uint64_t)accepted(cut + 2 * IMAGE_PAGE - bytes / 8 * 8, bytes / 8 * 8, file_bytes);
        } else {
            yes += (uint64_t)accepted(tables, bytes, draw(16) ? file_bytes : odd_number(file_bytes));
        }
    }
    printf("%llu runs, %llu accepted\n", (unsigned long long)runs, (unsigned long long)yes);
    return 0;
}
#endif
