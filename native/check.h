// Runs in both address spaces. Whether the tables of an image can be trusted to be what freeze writes.

#ifndef THAWD_CHECK_H
#define THAWD_CHECK_H

#include <stdint.h>

struct check_failure {
    const char *what; // for a person
    uint64_t where;   // offset in the image, or the index of a record
};

// Checks every number in the first `tables_bytes` of an image whose file has `file_bytes`: afterwards each offset,
// index and text may be used without another check. Returns 0, or -1 with `failure` filled in.
int image_check(const void *tables, uint64_t tables_bytes, uint64_t file_bytes, struct check_failure *failure);

#endif
