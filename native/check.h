// Checks that offsets, counts and values in the tables of an image are valid, so that thaw can use them without checks
// of its own. Runs in thaw's address space, and in the fuzzer.

#ifndef THAWD_CHECK_H
#define THAWD_CHECK_H

#include <stdint.h>

struct check_failure {
    const char *what; // the broken rule, as text for people
    uint64_t where;   // offset in the image, or the index of a record
};

// Checks every number in the first `tables_bytes` bytes of an image, a file of `file_bytes` bytes. Afterwards each
// offset, index and text can be used without another check. Returns 0, or -1 with `failure` filled in.
int image_check(const void *tables, uint64_t tables_bytes, uint64_t file_bytes, struct check_failure *failure);

#endif
