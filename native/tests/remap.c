// Runs in the process that is frozen. Tests mremap after the thaw. Memory of a copy is mapped from the image. If mremap
// grows such a mapping, the kernel alone would show the next pages of the image in the new part, or a fault if there
// are none. The new part must be zeros.

#include "harness.h"

#define GROW_MOVED(at, pages, more) mremap(at, (pages) * PAGE, (more) * PAGE, MREMAP_MAYMOVE)

static char *pattern(size_t pages, uint64_t seed) {
    char *memory = map_anonymous(pages);
    fill(memory, pages * PAGE, seed);
    return memory;
}

CASE(grow, "mremap grows memory, moved or in place: old contents, then zeros") {
    char *moves = pattern(100, 1), *stays = pattern(300, 2);
    CHECK_EQUAL(munmap(stays + 100 * PAGE, 200 * PAGE), 0); // the addresses after `stays` are now free
    freeze_here();
    char *larger = GROW_MOVED(moves, 100, 1000);
    CHECK(larger != MAP_FAILED);
    CHECK(filled(larger, 100 * PAGE, 1) && zeros(larger + 100 * PAGE, 900 * PAGE));
    fill(larger, 1000 * PAGE, 3);
    CHECK(filled(larger, 1000 * PAGE, 3));
    char *grown = mremap(stays, 100 * PAGE, 250 * PAGE, 0);
    if (grown == MAP_FAILED) { // other memory may be mapped directly after `stays` by now
        CHECK_EQUAL(errno, ENOMEM);
        CHECK(filled(stays, 100 * PAGE, 2));
    } else {
        CHECK(grown == stays);
        CHECK(filled(grown, 100 * PAGE, 2) && zeros(grown + 100 * PAGE, 150 * PAGE));
        memset(grown, 1, 250 * PAGE);
    }
}

CASE(shrink, "mremap shrinks memory: the end is unmapped, the rest is unchanged") {
    char *memory = pattern(200, 1);
    freeze_here();
    CHECK(mremap(memory, 200 * PAGE, 50 * PAGE, 0) == memory);
    CHECK(filled(memory, 50 * PAGE, 1));
    unsigned char resident[1];
    CHECK_EQUAL(mincore(memory + 50 * PAGE, PAGE, resident), -1);
    CHECK_EQUAL(errno, ENOMEM);
    char *larger = GROW_MOVED(memory, 50, 120);
    CHECK(larger != MAP_FAILED);
    CHECK(filled(larger, 50 * PAGE, 1) && zeros(larger + 50 * PAGE, 70 * PAGE));
}

CASE(move, "mremap moves memory, or a part of it, to a fixed address") {
    char *memory = pattern(90, 1), *place = map_anonymous(200);
    memset(place, 9, 200 * PAGE);
    freeze_here();
    char *moved = mremap(memory + 30 * PAGE, 30 * PAGE, 30 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + 10 * PAGE);
    CHECK(moved == place + 10 * PAGE);
    CHECK(filled(moved, 30 * PAGE, 1 + 30 * PAGE / 8));
    CHECK(place[10 * PAGE - 1] == 9 && place[40 * PAGE] == 9);
    CHECK(filled(memory, 30 * PAGE, 1) && filled(memory + 60 * PAGE, 30 * PAGE, 1 + 60 * PAGE / 8));
    unsigned char resident[1];
    CHECK_EQUAL(mincore(memory + 30 * PAGE, PAGE, resident), -1);
    char *grown = mremap(memory, 30 * PAGE, 60 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + 100 * PAGE);
    CHECK(grown == place + 100 * PAGE);
    CHECK(filled(grown, 30 * PAGE, 1) && zeros(grown + 30 * PAGE, 30 * PAGE));
    memset(grown, 4, 60 * PAGE);
    CHECK(filled(moved, 30 * PAGE, 1 + 30 * PAGE / 8));
}

CASE(several_runs, "mremap of memory of which only parts were stored keeps these parts, and zeros between them") {
    char *memory = map_anonymous(800);
    for (size_t i = 0; i < 800; i += 100)
        fill(memory + i * PAGE, 2 * PAGE, i);
    freeze_here();
    char *larger = GROW_MOVED(memory, 800, 2000);
    CHECK(larger != MAP_FAILED);
    for (size_t i = 0; i < 800; i += 100) {
        CHECK(filled(larger + i * PAGE, 2 * PAGE, i));
        CHECK(zeros(larger + (i + 2) * PAGE, 98 * PAGE));
    }
    CHECK(zeros(larger + 800 * PAGE, 1200 * PAGE));
    memset(larger, 1, 2000 * PAGE);
}

CASE(of_changed_memory, "mremap works after the memory was written, partly released and mapped again") {
    char *memory = pattern(100, 1);
    freeze_here();
    fill(memory + 10 * PAGE, 5 * PAGE, 50);
    CHECK_EQUAL(madvise(memory + 40 * PAGE, 20 * PAGE, MADV_DONTNEED), 0);
    char *larger = GROW_MOVED(memory, 100, 400);
    if (larger == MAP_FAILED) { // mremap(2) refuses memory that consists of several mappings; it must be unchanged then
        CHECK_EQUAL(errno, EFAULT);
        larger = memory;
    } else {
        CHECK(zeros(larger + 100 * PAGE, 300 * PAGE));
    }
    CHECK(filled(larger, 10 * PAGE, 1));
    CHECK(filled(larger + 10 * PAGE, 5 * PAGE, 50));
    CHECK(filled(larger + 15 * PAGE, 25 * PAGE, 1 + 15 * PAGE / 8));
    CHECK(zeros(larger + 40 * PAGE, 20 * PAGE));
    CHECK(filled(larger + 60 * PAGE, 40 * PAGE, 1 + 60 * PAGE / 8));
}

CASE(again_and_again, "memory that grows 200 times keeps its contents") {
    char *memory = pattern(10, 1);
    freeze_here();
    size_t pages = 10;
    for (int i = 0; i < 200; i++) {
        size_t more = pages + 1 + (size_t)i % 7;
        memory = GROW_MOVED(memory, pages, more);
        CHECK(memory != MAP_FAILED);
        CHECK(zeros(memory + pages * PAGE, (more - pages) * PAGE));
        fill(memory, more * PAGE, 1);
        pages = more;
    }
    CHECK(filled(memory, pages * PAGE, 1));
}

CASE(dont_unmap, "MREMAP_DONTUNMAP moves the contents and leaves zeros, or fails and changes nothing") {
    char *memory = pattern(40, 1);
    freeze_here();
    char *moved = mremap(memory, 40 * PAGE, 40 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (moved == MAP_FAILED) { // kernels before 5.13 refuse this for memory that is mapped from a file
        CHECK_EQUAL(errno, EINVAL);
        CHECK(filled(memory, 40 * PAGE, 1));
    } else {
        CHECK(filled(moved, 40 * PAGE, 1));
        CHECK(zeros(memory, 40 * PAGE));
        memset(memory, 1, 40 * PAGE);
        CHECK(filled(moved, 40 * PAGE, 1));
    }
}

CASE(shared, "mremap of shared memory shows more of the memory object, as in a process that was never frozen") {
    int fd = memfd_create("grows", MFD_CLOEXEC);
    CHECK_EQUAL(ftruncate(fd, 100 * PAGE), 0);
    char *memory = map_pages(50, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fill(memory, 50 * PAGE, 1);
    freeze_here();
    char *larger = GROW_MOVED(memory, 50, 100);
    CHECK(larger != MAP_FAILED);
    CHECK(filled(larger, 50 * PAGE, 1) && zeros(larger + 50 * PAGE, 50 * PAGE));
    fill(larger, 100 * PAGE, 2);
    uint64_t word;
    CHECK_EQUAL(pread(fd, &word, 8, 99 * PAGE), 8);
    CHECK_EQUAL(memcmp(&word, larger + 99 * PAGE, 8), 0);
}

CASE(of_files, "mremap of a private mapping of a file shows more of the file") {
    int fd = make_file("data", 100, 1);
    char *memory = map_pages(30, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    char *clean = map_pages(30, PROT_READ, MAP_PRIVATE, fd, 0);
    fill(memory + 10 * PAGE, PAGE, 5);
    freeze_here();
    char *larger = GROW_MOVED(clean, 30, 100);
    CHECK(larger != MAP_FAILED);
    CHECK(filled(larger, 100 * PAGE, 1));
    char *moved = GROW_MOVED(memory, 30, 80);
    if (moved == MAP_FAILED) {
        CHECK_EQUAL(errno, EFAULT); // the memory consists of three mappings in a copy: file, image, file
        moved = memory;
    } else {
        CHECK(filled(moved + 30 * PAGE, 50 * PAGE, 1 + 30 * PAGE / 8));
    }
    CHECK(filled(moved, 10 * PAGE, 1) && filled(moved + 10 * PAGE, PAGE, 5));
    CHECK(filled(moved + 11 * PAGE, 19 * PAGE, 1 + 11 * PAGE / 8));
}

CASE(errors, "mremap fails in the copy as in a process that was never frozen, errno included") {
    char *memory = pattern(10, 1), *between = map_anonymous(30);
    CHECK_EQUAL(munmap(between + 10 * PAGE, 10 * PAGE), 0);
    freeze_here();
    CHECK(mremap(memory + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK_EQUAL(errno, EINVAL);
    CHECK(mremap(between + 12 * PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK_EQUAL(errno, EFAULT);
    CHECK(mremap(memory, 10 * PAGE, 0, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK_EQUAL(errno, EINVAL);
    CHECK(mremap(memory, 10 * PAGE, 1ul << 46, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK_EQUAL(errno, ENOMEM);
    CHECK(filled(memory, 10 * PAGE, 1));
}

CASE(large_realloc, "realloc grows 100 MB to 150 MB, which mremap does, and shrinks it again") {
    size_t bytes = 100 * MIB;
    char *memory = malloc(bytes);
    CHECK(memory);
    fill(memory, bytes, 1);
    freeze_here();
    memory = realloc(memory, 150 * MIB);
    CHECK(memory);
    CHECK(filled(memory, bytes, 1));
    fill(memory + bytes, 50 * MIB, 2);
    memory = realloc(memory, 10 * MIB);
    CHECK(memory);
    CHECK(filled(memory, 10 * MIB, 1));
    free(memory);
}
