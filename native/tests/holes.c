// Runs in the process that is frozen. Tests copies that release memory of the image page by page. Each released page is
// a hole, which the kernel would represent as one more mapping. The number of mappings grows only to a limit, the holes
// read as zeros, and neighbouring pages are unchanged.

#include "harness.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define PAGES 6000ul       // every third page is released
#define MAPPINGS_MORE 1500 // more mappings than this must not be added; there are far more holes
#define BLOCKS 12000ul
#define BLOCK_BYTES 6000ul

static long mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps);
    long lines = 0;
    for (int c; (c = fgetc(maps)) != EOF;)
        lines += c == '\n';
    fclose(maps);
    return lines;
}

// Returns the number of KiB that /proc/self/smaps_rollup shows under `name`.
static long memory_kib(const char *name) {
    FILE *status = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    long kib = -1;
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = atol(line + strlen(name));
    fclose(status);
    CHECK(kib >= 0);
    return kib;
}

// Releases the middle page of each three.
static void give_back(char *memory, int advice) {
    for (size_t i = 1; i < PAGES; i += 3)
        CHECK_EQUAL(madvise(memory + i * PAGE, PAGE, advice), 0);
}

static void check_neighbours(const char *memory, uint64_t seed) {
    for (size_t i = 0; i < PAGES; i++)
        if (i % 3 != 1)
            CHECK(filled(memory + i * PAGE, PAGE, seed + i * PAGE / 8));
}

CASE(of_one_page, "2,000 holes of a page add few mappings, and read as zeros, also in a child") {
    char *memory = map_anonymous(PAGES);
    fill(memory, PAGES * PAGE, 1);
    freeze_here();
    long before = mappings();
    give_back(memory, MADV_DONTNEED);
    CHECK(mappings() - before < MAPPINGS_MORE);
    check_neighbours(memory, 1);
    int status;
    pid_t child = fork();
    for (size_t i = 1; i < PAGES; i += 3)
        CHECK(zeros(memory + i * PAGE, PAGE));
    if (child == 0)
        _exit(0);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    fill(memory, PAGES * PAGE, 2);
    CHECK(filled(memory, PAGES * PAGE, 2));
    CHECK_EQUAL(madvise(memory, PAGES * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory, PAGES * PAGE));
    CHECK(mappings() - before < MAPPINGS_MORE);
}

CASE(freed_lazily, "2,000 holes by MADV_FREE add few mappings, and data written afterwards stays") {
    char *memory = map_anonymous(PAGES);
    fill(memory, PAGES * PAGE, 1);
    freeze_here();
    long before = mappings();
    give_back(memory, MADV_FREE);
    CHECK(mappings() - before < MAPPINGS_MORE);
    for (size_t i = 1; i < PAGES; i += 3)
        CHECK(zeros(memory + i * PAGE, PAGE) || filled(memory + i * PAGE, PAGE, 1 + i * PAGE / 8));
    check_neighbours(memory, 1);
    fill(memory, PAGES * PAGE, 2);
    CHECK(filled(memory, PAGES * PAGE, 2));
}

CASE(again, "pages that were released, written and released again take neither more mappings nor more memory") {
    char *memory = map_anonymous(PAGES);
    fill(memory, PAGES * PAGE, 1);
    freeze_here();
    give_back(memory, MADV_DONTNEED);
    long before = mappings(), kib = memory_kib("Anonymous:");
    for (int round = 0; round < 3; round++) {
        for (size_t i = 1; i < PAGES; i += 3)
            memory[i * PAGE + 8 * (size_t)round] = 1;
        give_back(memory, MADV_DONTNEED);
    }
    for (size_t i = 1; i < PAGES; i += 3)
        CHECK(zeros(memory + i * PAGE, PAGE));
    check_neighbours(memory, 1);
    CHECK(mappings() - before < 10);
    CHECK(memory_kib("Anonymous:") - kib < (long)(PAGES * PAGE / 1024 / 8));
}

CASE(of_forbidden_memory, "2,000 holes in memory without write or read permission are zeros and keep this protection") {
    char *read_only = map_anonymous(PAGES), *closed = map_anonymous(PAGES);
    fill(read_only, PAGES * PAGE, 1);
    fill(closed, PAGES * PAGE, 2);
    CHECK_EQUAL(mprotect(read_only, PAGES * PAGE, PROT_READ), 0);
    CHECK_EQUAL(mprotect(closed, PAGES * PAGE, PROT_NONE), 0);
    freeze_here();
    long before = mappings();
    give_back(read_only, MADV_DONTNEED);
    give_back(closed, MADV_DONTNEED);
    CHECK(mappings() - before < MAPPINGS_MORE);
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    CHECK_EQUAL(read(ends[0], read_only + (PAGES - 2) * PAGE, 1), -1);
    CHECK_EQUAL(write(ends[1], closed + (PAGES - 2) * PAGE, 1), -1);
    CHECK_EQUAL(mprotect(closed, PAGES * PAGE, PROT_READ), 0);
    for (size_t i = 1; i < PAGES; i += 3)
        CHECK(zeros(read_only + i * PAGE, PAGE) && zeros(closed + i * PAGE, PAGE));
    check_neighbours(read_only, 1);
    check_neighbours(closed, 2);
}

CASE(protected_later,
     "after very many holes, holes in memory whose protection was changed are zeros and keep the new protection") {
    char *memory = map_anonymous(PAGES);
    fill(memory, PAGES * PAGE, 1);
    freeze_here();
    give_back(memory, MADV_DONTNEED);
    fill(memory, PAGES * PAGE, 1);
    CHECK_EQUAL(mprotect(memory + 300 * PAGE, 100 * PAGE, PROT_READ), 0);
    CHECK_EQUAL(mprotect(memory + 600 * PAGE, 100 * PAGE, PROT_NONE), 0);
    CHECK_EQUAL(mprotect(memory + 900 * PAGE, 100 * PAGE, PROT_WRITE), 0);
    give_back(memory, MADV_DONTNEED);
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    CHECK_EQUAL(read(ends[0], memory + 301 * PAGE, 1), -1);
    CHECK_EQUAL(read(ends[0], memory + 601 * PAGE, 1), -1);
    CHECK_EQUAL(mprotect(memory + 600 * PAGE, 400 * PAGE, PROT_READ | PROT_WRITE), 0);
    for (size_t i = 1; i < PAGES; i += 3)
        CHECK(zeros(memory + i * PAGE, PAGE));
    check_neighbours(memory, 1);
}

CASE(under_a_filter,
     "if a program installs a seccomp filter after very many holes, later holes need no system call that it forbids") {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_get_mempolicy, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    char *memory = map_anonymous(PAGES);
    fill(memory, PAGES * PAGE, 1);
    freeze_here();
    give_back(memory, MADV_DONTNEED);
    fill(memory, PAGES * PAGE, 1);
    CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    give_back(memory, MADV_DONTNEED);
    for (size_t i = 1; i < PAGES; i += 3)
        CHECK(zeros(memory + i * PAGE, PAGE));
    check_neighbours(memory, 1);
}

CASE(of_locked_memory,
     "after very many holes, madvise fails on locked memory as before, and releases memory mapped after the thaw") {
    char *memory = map_anonymous(PAGES), *locked = map_anonymous(30);
    fill(memory, PAGES * PAGE, 1);
    fill(locked, 30 * PAGE, 2);
    freeze_here();
    give_back(memory, MADV_DONTNEED);
    CHECK_EQUAL(mlock(locked + 10 * PAGE, 10 * PAGE), 0);
    CHECK_EQUAL(madvise(locked + 12 * PAGE, PAGE, MADV_DONTNEED), -1);
    CHECK_EQUAL(errno, EINVAL);
    CHECK(filled(locked, 30 * PAGE, 2));
    CHECK(mmap(memory + 9 * PAGE, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          memory + 9 * PAGE);
    memset(memory + 9 * PAGE, 5, 6 * PAGE);
    CHECK_EQUAL(madvise(memory + 11 * PAGE, PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory + 11 * PAGE, PAGE) && memory[11 * PAGE - 1] == 5 && memory[12 * PAGE] == 5);
    int fd = make_file("data", 6, 9);
    CHECK(mmap(memory + 18 * PAGE, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) ==
          memory + 18 * PAGE);
    memset(memory + 18 * PAGE, 5, 6 * PAGE);
    CHECK_EQUAL(madvise(memory + 18 * PAGE, 3 * PAGE, MADV_DONTNEED), 0);
    CHECK(filled(memory + 18 * PAGE, 3 * PAGE, 9) && memory[21 * PAGE] == 5); // the file's contents, not zeros
}

static void write_neighbours(struct worker *worker) {
    char *memory = worker->data;
    while (!worker->stop) {
        uint64_t number = (uint64_t)++worker->rounds;
        for (size_t i = 0; i < PAGES; i += 300) { // page i + 1, between the two written pages, is a hole
            fill(memory + i * PAGE, PAGE, number + i);
            fill(memory + (i + 2) * PAGE, PAGE, number + i);
            CHECK(filled(memory + i * PAGE, PAGE, number + i));
            CHECK(filled(memory + (i + 2) * PAGE, PAGE, number + i));
        }
        rest();
    }
}

CASE(beside_writers, "while holes are made, a thread that writes and reads the pages beside them reads what it wrote") {
    struct worker writer = {0};
    char *memory = map_anonymous(PAGES);
    fill(memory, PAGES * PAGE, 1);
    writer.data = memory;
    freeze_here();
    start_worker(&writer, write_neighbours);
    for (int round = 0; round < 3; round++) {
        give_back(memory, MADV_DONTNEED);
        for (size_t i = 1; i < PAGES; i += 3) {
            CHECK(zeros(memory + i * PAGE, PAGE));
            memory[i * PAGE] = 1;
        }
        check_goes_on(&writer);
    }
    stop_worker(&writer);
}

static void do_nothing(struct worker *worker) {
    (void)worker;
}

CASE(trimmed_heap, "freeing two thirds of 12,000 blocks, with malloc_trim, adds few mappings; threads still start") {
    static char *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i] = malloc(BLOCK_BYTES));
        memset(blocks[i], (int)(1 + i % 100), BLOCK_BYTES);
    }
    freeze_here();
    long before = mappings();
    for (size_t i = 0; i < BLOCKS; i++)
        if (i % 3)
            free(blocks[i]);
    malloc_trim(0);
    CHECK(mappings() - before < 3 * MAPPINGS_MORE);
    // The copy must not use more memory than the original used before it freed anything.
    CHECK(memory_kib("Anonymous:") < (long)(BLOCKS * (BLOCK_BYTES + 32) / 1024 + 20 * 1024));
    for (size_t i = 0; i < BLOCKS; i += 3)
        CHECK(blocks[i][0] == (char)(1 + i % 100) && blocks[i][BLOCK_BYTES - 1] == (char)(1 + i % 100));
    struct worker workers[40] = {0};
    for (int i = 0; i < 40; i++)
        start_worker(&workers[i], do_nothing);
    for (int i = 0; i < 40; i++)
        join_worker(&workers[i]);
    char *cleared = calloc(BLOCKS / 4, BLOCK_BYTES / 100);
    CHECK(cleared && zeros(cleared, BLOCKS / 4 * (BLOCK_BYTES / 100)));
}

CASE(grown_again_and_again,
     "blocks that mremap moves as they grow keep their contents and add a limited number of mappings") {
    char *small = map_anonymous(10), *large = map_anonymous(600);
    fill(small, 10 * PAGE, 1);
    fill(large, 600 * PAGE, 2);
    freeze_here();
    long before = mappings();
    for (size_t i = 0; i < 200; i++) {
        small = mremap(small, (10 + i) * PAGE, (11 + i) * PAGE, MREMAP_MAYMOVE);
        large = mremap(large, (600 + i) * PAGE, (601 + i) * PAGE, MREMAP_MAYMOVE);
        CHECK(small != MAP_FAILED && large != MAP_FAILED);
        CHECK(zeros(small + (10 + i) * PAGE, PAGE) && zeros(large + (600 + i) * PAGE, PAGE));
        small[(10 + i) * PAGE] = large[(600 + i) * PAGE] = (char)(i + 1);
        // Put a mapping directly after each block, so that the block must move when it grows again.
        mmap(small + (11 + i) * PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        mmap(large + (601 + i) * PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
    CHECK(mappings() - before < 60 + 2 * 200);
    CHECK(filled(small, 10 * PAGE, 1) && filled(large, 600 * PAGE, 2));
    for (size_t i = 0; i < 200; i++)
        CHECK(small[(10 + i) * PAGE] == (char)(i + 1) && large[(600 + i) * PAGE] == (char)(i + 1));
}
