// Runs as a separate test program: `forge_image IMAGE FIELD [TEXT]`. Changes one field of an image's header and
// corrects the checksum, so that the image seems to come from another machine or another version. The field becomes
// TEXT, or one of its bits changes. Without arguments it lists the fields.
//
// `forge_image IMAGE earlier DEVICE INODE NEW`: where the image says that an earlier image has these numbers of device
// and inode, the device becomes NEW, as if that device had had another number at the freeze. All numbers are decimal.
// `forge_image IMAGE device-of INODE`: the same for the file with this inode that the image names.
// `forge_image IMAGE ticks NUMBER`: times(2) seems to have returned NUMBER at the freeze.

#include "../image.h"
#include "../thaw_landing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIELD(name) {#name, offsetof(struct image_header, name), sizeof(((struct image_header *)0)->name)}

static const struct {
    const char *name;
    size_t offset, bytes;
} fields[] = {
    FIELD(layout),
    FIELD(architecture),
    FIELD(file_bytes),
    FIELD(data_offset),
    FIELD(flags),
    FIELD(anonymous_offset),
    FIELD(tables_checksum),
    FIELD(host.kernel_release),
    FIELD(host.boot_id),
    FIELD(host.kernel_version),
    FIELD(host.cpu_vendor),
    FIELD(host.cpu_signature),
    FIELD(host.cpu_features),
    FIELD(host.xsave_bytes),
    FIELD(host.xcr0),
    {"host.xsave_places", offsetof(struct image_header, host.xsave_places[2 * 2]), 8}, // of the AVX registers
};
#define FIELDS (sizeof fields / sizeof *fields)

static unsigned char *map_whole(int fd) {
    unsigned char *image = mmap(NULL, (size_t)lseek(fd, 0, SEEK_END), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (image == MAP_FAILED)
        exit(1);
    return image;
}

static void correct(unsigned char *image) {
    struct image_header *header = (struct image_header *)image;
    const struct section_place *last = &header->sections[SECTION_STRINGS];
    header->tables_checksum = checksum(image + IMAGE_PAGE, last->offset + last->count - IMAGE_PAGE);
    header->header_checksum = 0;
    header->header_checksum = checksum(header, sizeof *header);
}

static int change_device_of_file(int fd, uint64_t inode) {
    unsigned char *image = map_whole(fd);
    const struct section_place *files = &((struct image_header *)image)->sections[SECTION_FILES];
    struct file_identity *file = (struct file_identity *)(image + files->offset);
    int found = 0;
    for (uint32_t i = 0; i < files->count; i++)
        if (file[i].inode == inode) {
            file[i].device++;
            found++;
        }
    correct(image);
    return found ? 0 : 3;
}

static int set_ticks(int fd, int64_t ticks) {
    unsigned char *image = map_whole(fd);
    struct image_header *header = (struct image_header *)image;
    const struct operation *operations = (struct operation *)(image + header->sections[SECTION_OPERATIONS].offset);
    uint64_t at = header->process.landing + offsetof(struct landing, ticks);
    for (uint32_t i = header->sections[SECTION_OPERATIONS].count; i-- > 0;)
        if (operations[i].kind >= OPERATION_DATA && at - operations[i].address < operations[i].length) {
            memcpy(image + operations[i].offset + (at - operations[i].address), &ticks, sizeof ticks);
            return 0;
        }
    return 3;
}

// Both numbers are words that follow each other, in a stored page or in the table of changed words.
static int change_device(int fd, uint64_t device, uint64_t inode, uint64_t to) {
    off_t bytes = lseek(fd, 0, SEEK_END);
    unsigned char *image = map_whole(fd);
    struct image_header *header = (struct image_header *)image;
    const struct section_place *words = &header->sections[SECTION_WORDS];
    int found = 0;
    for (uint64_t *at = (uint64_t *)(image + header->data_offset); at + 1 < (uint64_t *)(image + bytes); at++)
        if (at[0] == device && at[1] == inode) {
            at[0] = to;
            found++;
        }
    struct changed_word *word = (struct changed_word *)(image + words->offset);
    for (uint32_t i = 0; i + 1 < words->count; i++)
        if (word[i].value == device && word[i + 1].value == inode && word[i + 1].address == word[i].address + 8) {
            word[i].value = to;
            found++;
        }
    correct(image);
    return found ? 0 : 3; // others are what function calls have left on stacks
}

int main(int argc, char **argv) {
    struct image_header header;
    if (argc < 3) {
        for (size_t i = 0; i < FIELDS; i++)
            puts(fields[i].name);
        return 0;
    }
    int fd = open(argv[1], O_RDWR);
    if (fd < 0 || pread(fd, &header, sizeof header, 0) != sizeof header)
        return 1;
    if (argc == 6 && strcmp(argv[2], "earlier") == 0)
        return change_device(fd, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
    if (argc == 4 && strcmp(argv[2], "device-of") == 0)
        return change_device_of_file(fd, strtoull(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[2], "ticks") == 0)
        return set_ticks(fd, strtoll(argv[3], NULL, 10));
    for (size_t i = 0; i < FIELDS; i++) {
        if (strcmp(fields[i].name, argv[2]) != 0)
            continue;
        unsigned char *field = (unsigned char *)&header + fields[i].offset;
        unsigned bit = argc > 3 ? (unsigned)strtoul(argv[3] + 1, NULL, 10) : 0;
        if (argc > 3 && argv[3][0] == '+')
            field[bit / 8] |= (unsigned char)(1u << bit % 8);
        else if (argc > 3 && argv[3][0] == '-')
            field[bit / 8] &= (unsigned char)~(1u << bit % 8);
        else if (argc > 3)
            strncpy((char *)field, argv[3], fields[i].bytes);
        else
            *field ^= 0x40;
        header.header_checksum = 0;
        header.header_checksum = checksum(&header, sizeof header);
        return pwrite(fd, &header, sizeof header, 0) == sizeof header ? 0 : 1;
    }
    return 2;
}
