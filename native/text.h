// Runs in freeze and in thaw. Reads and writes short texts without a C library.

#ifndef THAWD_TEXT_H
#define THAWD_TEXT_H

#include <stdint.h>

#include "sys.h"

static inline uint64_t text_bytes(const char *text) {
    uint64_t bytes = 0;
    while (text[bytes])
        bytes++;
    return bytes;
}

static inline int text_equal(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static inline int text_begins(const char *text, const char *beginning) {
    while (*beginning && *text == *beginning)
        text++, beginning++;
    return !*beginning;
}

static inline int text_ends(const char *text, const char *ending) {
    uint64_t bytes = text_bytes(text), ending_bytes = text_bytes(ending);
    return bytes >= ending_bytes && text_equal(text + bytes - ending_bytes, ending);
}

// Writes text into a buffer and always ends it with a NUL; text that does not fit is cut off.
struct writer {
    char *at, *end;
};

static inline struct writer text_writer(char *buffer, uint64_t bytes) {
    *buffer = 0;
    return (struct writer){buffer, buffer + bytes - 1};
}

static inline void put_text(struct writer *out, const char *text) {
    while (*text && out->at < out->end)
        *out->at++ = *text++;
    *out->at = 0;
}

static inline void put_number(struct writer *out, uint64_t value, unsigned base) {
    char digits[24];
    int at = sizeof digits - 1;
    digits[at] = 0;
    do
        digits[--at] = "0123456789abcdef"[value % base];
    while (value /= base);
    put_text(out, digits + at);
}

// Reads a number in `base` and moves `*at` past its digits.
static inline uint64_t take_number(const char **at, unsigned base) {
    uint64_t value = 0;
    for (;; ++*at) {
        char c = **at;
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                                : 16;
        if (digit >= base)
            return value;
        value = value * base + digit;
    }
}

static inline void skip_spaces(const char **at) {
    while (**at == ' ' || **at == '\t')
        ++*at;
}

// Finds the line of `text` that begins with `name`; returns the text after `name`, or NULL.
static inline const char *find_line(const char *text, const char *name) {
    while (*text) {
        if (text_begins(text, name))
            return text + text_bytes(name);
        while (*text && *text++ != '\n') {
        }
    }
    return 0;
}

// Reads at most `bytes` - 1 of the file at `path` and adds a NUL; returns the length, or -errno.
static inline long read_text_file(const char *path, char *to, uint64_t bytes) {
    int fd = sys_open(path, 02000000 /* O_CLOEXEC */, 0);
    if (fd < 0)
        return fd;
    uint64_t have = 0;
    long got;
    while (have < bytes - 1 && (got = sys_read(fd, to + have, bytes - 1 - have)) > 0)
        have += (uint64_t)got;
    sys_close(fd);
    to[have] = 0;
    return (long)have;
}

#endif
