// Runs in the process that is frozen. The programs that test refusals include this file. Its functions check that a
// freeze is refused and that the process is unchanged afterwards.

#ifndef THAWD_TESTS_REFUSING_H
#define THAWD_TESTS_REFUSING_H

#include "harness.h"

#include <dirent.h>

static struct worker bystander; // shows that the other threads continue

static inline int count_entries(const char *folder) {
    DIR *listed = opendir(folder);
    CHECK(listed);
    int count = 0;
    while (readdir(listed))
        count++;
    closedir(listed);
    return count;
}

// Copies the first bytes of the C library's madvise. A freeze patches them, and a refused freeze must restore them.
static inline void read_code(unsigned char code[16]) {
    memcpy(code, (const void *)(uintptr_t)madvise, 16);
}

// Checks that a freeze to `path` returns `wanted`, that its text contains `thing` (the cause) and `way_out` (what to
// do), and that it leaves the process and the folder unchanged.
static inline void expect_no_freeze(const char *path, int wanted, const char *thing, const char *way_out) {
    if (runs_as("dry"))
        return;
    uint64_t action_before[4], action_after[4];
    unsigned char code_before[16], code_after[16];
    CHECK_EQUAL(syscall(SYS_rt_sigaction, 33, NULL, action_before, 8), 0);
    read_code(code_before);
    int descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    int result = freeze_to(path, NULL, 0);
    dprintf(1, "refused: %s\n", report.text);
    CHECK_EQUAL(result, wanted);
    CHECK(strstr(report.text, thing));
    CHECK(strstr(report.text, way_out));
    CHECK(report.stage[0]);
    CHECK(wanted == FREEZE_FAILED || report.error == 0);
    CHECK_EQUAL(syscall(SYS_rt_sigaction, 33, NULL, action_after, 8), 0);
    CHECK_EQUAL(memcmp(action_before, action_after, sizeof action_before), 0);
    read_code(code_after);
    CHECK_EQUAL(memcmp(code_before, code_after, sizeof code_before), 0);
    CHECK_EQUAL(count_entries("/proc/self/fd"), descriptors);
    CHECK_EQUAL(count_entries("/proc/self/task"), threads);
    CHECK_EQUAL(access(image_path, F_OK), -1);
    char partial[4096];
    snprintf(partial, sizeof partial, "%s.partial", image_path);
    CHECK_EQUAL(access(partial, F_OK), -1);
    if (bystander.tid)
        check_goes_on(&bystander);
}

static inline void expect_refusal(const char *thing, const char *way_out) {
    expect_no_freeze(image_path, FREEZE_REFUSED, thing, way_out);
}

// A case calls begin() first, which starts a thread that must keep running. When the cause of the refusal is removed,
// it calls freeze_after_all(), which freezes and must succeed.
static inline void begin(void) {
    start_worker(&bystander, count_rounds);
}

static inline void freeze_after_all(void) {
    freeze_here();
    check_goes_on(&bystander);
    stop_worker(&bystander);
}

#endif
