// Runs in thaw's address space. The functions of a C library that compiled code calls even if the source does not.

#include <stddef.h>

#include "sys.h"

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    copy_bytes(to, from, bytes);
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    void *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(value) : "memory");
    return to;
}

int memcmp(const void *a, const void *b, size_t bytes) {
    const unsigned char *left = a, *right = b;
    for (; bytes; bytes--, left++, right++)
        if (*left != *right)
            return *left - *right;
    return 0;
}
