// Runs in the process that is frozen. Tests madvise and mlock before and after the thaw. A copy's memory is mapped from
// the image, so after MADV_DONTNEED the kernel alone would show the frozen contents instead of zeros. thawd replaces
// the C library's madvise for this reason.

#include "harness.h"

#include <sys/wait.h>

// Returns whether the mapping at `address` has a flag: a space and two letters from the line VmFlags in
// /proc/self/smaps, for example vmflag(at, " wf").
static bool vmflag(const void *address, const char *flag) {
    FILE *maps = fopen("/proc/self/smaps", "re");
    CHECK(maps);
    char line[512];
    unsigned long start = 0, end = 0;
    bool here = false, found = false;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            here = start <= (uintptr_t)address && (uintptr_t)address < end;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, flag) != NULL;
    }
    fclose(maps);
    return found;
}

CASE(dontneed, "MADV_DONTNEED zeroes whole ranges and parts of ranges, and does not change their neighbours") {
    char *memory = map_anonymous(600);
    fill(memory, 600 * PAGE, 1);
    freeze_here();
    CHECK_EQUAL(madvise(memory + 100 * PAGE, 50 * PAGE, MADV_DONTNEED), 0);
    CHECK(filled(memory, 100 * PAGE, 1));
    CHECK(zeros(memory + 100 * PAGE, 50 * PAGE));
    CHECK(filled(memory + 150 * PAGE, 450 * PAGE, 1 + 150 * PAGE / 8));
    fill(memory + 100 * PAGE, 50 * PAGE, 2);
    CHECK(filled(memory + 100 * PAGE, 50 * PAGE, 2));
    CHECK_EQUAL(madvise(memory + 90 * PAGE, 20 * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory + 90 * PAGE, 20 * PAGE));
    CHECK(filled(memory + 110 * PAGE, 40 * PAGE, 2 + 10 * PAGE / 8));
    CHECK_EQUAL(madvise(memory + 150 * PAGE, 1, MADV_DONTNEED), 0); // a length is rounded up to a page
    CHECK(zeros(memory + 150 * PAGE, PAGE));
    CHECK(filled(memory + 151 * PAGE, 449 * PAGE, 1 + 151 * PAGE / 8));
    CHECK_EQUAL(madvise(memory, 600 * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory, 600 * PAGE));
    memset(memory, 1, 600 * PAGE);
}

CASE(dontneed_many_runs, "MADV_DONTNEED works across stored runs, pages never touched, and changes of protection") {
    char *memory = map_anonymous(1000);
    for (size_t i = 0; i < 1000; i += 40)
        fill(memory + i * PAGE, 3 * PAGE, i);
    CHECK_EQUAL(mprotect(memory + 400 * PAGE, 100 * PAGE, PROT_READ), 0);
    freeze_here();
    CHECK_EQUAL(madvise(memory + 41 * PAGE, 900 * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory + 41 * PAGE, 900 * PAGE));
    for (size_t i = 0; i < 1000; i += 40) {
        if (i < 40 || i > 940)
            CHECK(filled(memory + i * PAGE, 3 * PAGE, i));
    }
    CHECK(filled(memory + 40 * PAGE, PAGE, 40));
    CHECK_EQUAL(mprotect(memory + 400 * PAGE, 100 * PAGE, PROT_READ | PROT_WRITE), 0);
    memset(memory, 1, 1000 * PAGE);
}

CASE(dontneed_keeps_mapping, "MADV_DONTNEED keeps protection and neighbours, and a fork after it sees zeros too") {
    char *memory = map_anonymous(60);
    fill(memory, 60 * PAGE, 1);
    CHECK_EQUAL(mprotect(memory + 20 * PAGE, 10 * PAGE, PROT_READ), 0);
    CHECK_EQUAL(mprotect(memory + 30 * PAGE, 10 * PAGE, PROT_NONE), 0);
    freeze_here();
    CHECK_EQUAL(madvise(memory + 10 * PAGE, 40 * PAGE, MADV_DONTNEED), 0);
    int ends[2], status;
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_EQUAL(write(ends[1], memory + 15 * PAGE, 100), 100);
    CHECK_EQUAL(read(ends[0], memory + 22 * PAGE, 100), -1);
    CHECK_EQUAL(errno, EFAULT);
    CHECK_EQUAL(write(ends[1], memory + 32 * PAGE, 100), -1);
    CHECK_EQUAL(errno, EFAULT);
    CHECK_EQUAL(mprotect(memory + 30 * PAGE, 10 * PAGE, PROT_READ), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(zeros(memory + 10 * PAGE, 40 * PAGE) && filled(memory, 10 * PAGE, 1) ? 0 : 1);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK(filled(memory + 50 * PAGE, 10 * PAGE, 1 + 50 * PAGE / 8));
}

CASE(dontneed_of_new_memory, "MADV_DONTNEED works on memory that was mapped, or mapped again, after the thaw") {
    char *memory = map_anonymous(100);
    fill(memory, 100 * PAGE, 1);
    freeze_here();
    CHECK(mmap(memory + 20 * PAGE, 30 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          memory + 20 * PAGE);
    memset(memory + 20 * PAGE, 5, 30 * PAGE);
    CHECK_EQUAL(madvise(memory + 10 * PAGE, 20 * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory + 10 * PAGE, 20 * PAGE));
    CHECK_EQUAL(memory[30 * PAGE], 5);
    CHECK_EQUAL(memory[50 * PAGE - 1], 5);
    char *fresh = map_anonymous(50);
    memset(fresh, 6, 50 * PAGE);
    CHECK_EQUAL(madvise(fresh, 50 * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(fresh, 50 * PAGE));
}

CASE(dontneed_of_files,
     "MADV_DONTNEED on pages of a file shows the file again, or fails where pages were written and frozen") {
    int fd = make_file("data", 40, 9);
    char *memory = map_pages(40, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    fill(memory + 10 * PAGE, 10 * PAGE, 50);
    char *shared = map_pages(20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(shared, 20 * PAGE, 51);
    freeze_here();
    CHECK(filled(memory + 10 * PAGE, 10 * PAGE, 50));
    fill(memory + 25 * PAGE, 5 * PAGE, 52);
    CHECK_EQUAL(madvise(memory + 20 * PAGE, 20 * PAGE, MADV_DONTNEED), 0);
    CHECK(filled(memory + 20 * PAGE, 20 * PAGE, 9 + 20 * PAGE / 8));
    if (madvise(memory + 5 * PAGE, 10 * PAGE, MADV_DONTNEED) == 0) {
        CHECK(filled(memory, 15 * PAGE, 9));
    } else {
        CHECK_EQUAL(errno, EACCES);
        CHECK(copy && filled(memory, 10 * PAGE, 9) && filled(memory + 10 * PAGE, 5 * PAGE, 50));
    }
    CHECK(filled(memory + 15 * PAGE, 5 * PAGE, 50 + 5 * PAGE / 8));
    CHECK_EQUAL(madvise(shared, 20 * PAGE, MADV_DONTNEED), 0);
    CHECK(filled(shared, 20 * PAGE, 51)); // shared memory keeps its contents: madvise(2)
}

CASE(free_pages, "MADV_FREE is accepted, and what is written after it stays") {
    char *memory = map_anonymous(200);
    fill(memory, 200 * PAGE, 1);
    freeze_here();
    CHECK_EQUAL(madvise(memory + 50 * PAGE, 100 * PAGE, MADV_FREE), 0);
    for (size_t i = 50; i < 150; i++)
        CHECK(zeros(memory + i * PAGE, PAGE) || filled(memory + i * PAGE, PAGE, 1 + i * PAGE / 8));
    fill(memory + 60 * PAGE, 10 * PAGE, 2);
    CHECK_EQUAL(madvise(memory, 200 * PAGE, MADV_PAGEOUT) == 0 || errno == EINVAL, 1);
    CHECK(filled(memory + 60 * PAGE, 10 * PAGE, 2));
    CHECK(filled(memory, 50 * PAGE, 1));
    CHECK(filled(memory + 150 * PAGE, 50 * PAGE, 1 + 150 * PAGE / 8));
}

CASE(errors, "madvise fails in the copy as in a process that was never frozen, errno included") {
    char *memory = map_anonymous(100);
    fill(memory, 100 * PAGE, 1);
    CHECK_EQUAL(munmap(memory + 50 * PAGE, 10 * PAGE), 0);
    freeze_here();
    CHECK_EQUAL(madvise(memory + 1, PAGE, MADV_DONTNEED), -1);
    CHECK_EQUAL(errno, EINVAL);
    CHECK_EQUAL(madvise(memory, PAGE, 12345), -1);
    CHECK_EQUAL(errno, EINVAL);
    CHECK_EQUAL(madvise(memory, 0, MADV_DONTNEED), 0);
    CHECK_EQUAL(madvise(memory, (size_t)-PAGE, MADV_DONTNEED), -1);
    errno = 0;
    // The call fails, but applies to the mapped pages on both sides of the unmapped ones. Source: madvise(2).
    CHECK_EQUAL(madvise(memory + 40 * PAGE, 40 * PAGE, MADV_DONTNEED), -1);
    CHECK_EQUAL(errno, ENOMEM);
    CHECK(zeros(memory + 40 * PAGE, 10 * PAGE) && zeros(memory + 60 * PAGE, 20 * PAGE));
    CHECK(filled(memory, 40 * PAGE, 1) && filled(memory + 80 * PAGE, 20 * PAGE, 1 + 80 * PAGE / 8));
    CHECK_EQUAL(mlock(memory, 10 * PAGE), 0);
    CHECK_EQUAL(madvise(memory, 10 * PAGE, MADV_DONTNEED), -1); // locked
    CHECK_EQUAL(errno, EINVAL);
    CHECK(filled(memory, 10 * PAGE, 1));
    CHECK_EQUAL(munlock(memory, 10 * PAGE), 0);
    CHECK_EQUAL(madvise(memory, 10 * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory, 10 * PAGE));
}

CASE(kept_advice, "advice given before the freeze holds in the copy: fork, dump, huge pages, locks") {
    char *memory = map_anonymous(60);
    fill(memory, 60 * PAGE, 1);
    CHECK_EQUAL(madvise(memory, 10 * PAGE, MADV_DONTFORK), 0);
    CHECK_EQUAL(madvise(memory + 10 * PAGE, 10 * PAGE, MADV_DONTDUMP), 0);
    bool huge = madvise(memory + 20 * PAGE, 10 * PAGE, MADV_NOHUGEPAGE) == 0;
    CHECK_EQUAL(mlock(memory + 30 * PAGE, 10 * PAGE), 0);
    CHECK_EQUAL(madvise(memory + 40 * PAGE, 10 * PAGE, MADV_RANDOM), 0);
    freeze_here();
    CHECK(filled(memory, 60 * PAGE, 1));
    CHECK(vmflag(memory, " dc") && !vmflag(memory + 10 * PAGE, " dc"));
    CHECK(vmflag(memory + 10 * PAGE, " dd"));
    CHECK(!huge || vmflag(memory + 20 * PAGE, " nh"));
    CHECK(vmflag(memory + 30 * PAGE, " lo") && !vmflag(memory + 29 * PAGE, " lo"));
    CHECK(vmflag(memory + 40 * PAGE, " rr"));
    int ends[2], status;
    CHECK_EQUAL(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) // the first 10 pages are not mapped in a child
        _exit(write(ends[1], memory + PAGE, 1) == -1 && errno == EFAULT &&
                      filled(memory + 10 * PAGE, PAGE, 1 + 10 * 512)
                  ? 0
                  : 1);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
}

CASE(wipe_on_fork, "memory that is wiped on fork is not stored in the image, and is wiped on fork in the copy") {
    char *memory = map_anonymous(20), *later = map_anonymous(20);
    memset(memory, 5, 20 * PAGE);
    fill(later, 20 * PAGE, 6);
    CHECK_EQUAL(madvise(memory, 20 * PAGE, MADV_WIPEONFORK), 0);
    freeze_here();
    CHECK(!copy || zeros(memory, 20 * PAGE));
    memset(memory, 7, 20 * PAGE);
    CHECK_EQUAL(madvise(later + 5 * PAGE, 10 * PAGE, MADV_WIPEONFORK), 0);
    CHECK(filled(later, 20 * PAGE, 6));
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(zeros(memory, 20 * PAGE) && zeros(later + 5 * PAGE, 10 * PAGE) && filled(later, 5 * PAGE, 6) ? 0 : 1);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK(filled(later, 20 * PAGE, 6));
    CHECK_EQUAL(memory[0], 7);
    CHECK_EQUAL(madvise(memory, 20 * PAGE, MADV_KEEPONFORK), 0);
}

CASE(other_advice, "all other advice is accepted in the copy and changes no contents") {
    static const int advice[] = {MADV_NORMAL,   MADV_RANDOM, MADV_SEQUENTIAL,    MADV_WILLNEED,
                                 MADV_DONTDUMP, MADV_DODUMP, MADV_COLD,          MADV_PAGEOUT,
                                 MADV_DONTFORK, MADV_DOFORK, MADV_POPULATE_READ, MADV_POPULATE_WRITE};
    char *memory = map_anonymous(1100);
    fill(memory, 1100 * PAGE, 1);
    freeze_here();
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        int result = madvise(memory + 100 * PAGE, 900 * PAGE, advice[i]);
        if (result != 0 && errno != EINVAL) // kernels before 5.14 do not have MADV_POPULATE_*
            CHECK_EQUAL(advice[i], -1);
        CHECK(filled(memory, 1100 * PAGE, 1));
    }
    int huge = madvise(memory, 1100 * PAGE, MADV_HUGEPAGE);
    CHECK(huge == 0 || errno == EINVAL);
    CHECK(filled(memory, 1100 * PAGE, 1));
    CHECK_EQUAL(mlock(memory, 100 * PAGE), 0);
    CHECK_EQUAL(munlock(memory, 100 * PAGE), 0);
    CHECK(filled(memory, 1100 * PAGE, 1));
}

static void advise_again_and_again(struct worker *worker) {
    char *memory = worker->data;
    for (int i = 0; i < 100; i++) {
        size_t page = (size_t)(worker->index * 37 + i * 13) % 90;
        memset(memory + page * PAGE, 1 + i, 10 * PAGE);
        CHECK_EQUAL(madvise(memory + page * PAGE, 10 * PAGE, i % 3 ? MADV_DONTNEED : MADV_FREE), 0);
        if (i % 3)
            CHECK(zeros(memory + page * PAGE, 10 * PAGE));
    }
}

CASE(many_threads, "8 threads call MADV_DONTNEED and MADV_FREE at the same time, each on its own part of one mapping") {
    struct worker workers[8] = {0};
    char *memory = map_anonymous(900);
    fill(memory, 900 * PAGE, 1);
    freeze_here();
    for (int i = 0; i < 8; i++) {
        workers[i].index = i;
        workers[i].data = memory + (size_t)i * 100 * PAGE;
        start_worker(&workers[i], advise_again_and_again);
    }
    for (int i = 0; i < 8; i++)
        join_worker(&workers[i]);
    CHECK(filled(memory + 800 * PAGE, 100 * PAGE, 1 + 800 * PAGE / 8));
}

CASE(raw_calls, "with FREEZE_COPY, code that makes the system calls itself gets zeros too") {
    char *memory = map_anonymous(100), *grows = map_anonymous(20);
    const char *flags = getenv("FREEZE_FLAGS");
    fill(memory, 100 * PAGE, 1);
    fill(grows, 20 * PAGE, 2);
    freeze_here();
    if (copy && !(flags && atoi(flags) & FREEZE_COPY))
        return; // without FREEZE_COPY, memory after these calls shows the image: docs/reference/refusals.md
    CHECK_EQUAL(syscall(SYS_madvise, memory + 10 * PAGE, 10 * PAGE, MADV_DONTNEED), 0);
    CHECK(zeros(memory + 10 * PAGE, 10 * PAGE) && filled(memory, 10 * PAGE, 1));
    CHECK_EQUAL(syscall(SYS_madvise, memory + 50 * PAGE, 10 * PAGE, MADV_FREE), 0);
    char *larger = (char *)syscall(SYS_mremap, grows, 20 * PAGE, 60 * PAGE, MREMAP_MAYMOVE);
    CHECK(larger != MAP_FAILED);
    CHECK(filled(larger, 20 * PAGE, 2) && zeros(larger + 20 * PAGE, 40 * PAGE));
}
