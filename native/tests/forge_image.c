// Runs as a separate test program: `forge_image IMAGE FIELD [TEXT]`. Changes one field of an image's header and
// corrects the checksum, so that the image seems to come from another machine or another version. The field becomes
// TEXT, or one of its bits changes. Without arguments it lists the fields.

#include "../image.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
