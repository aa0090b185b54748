// Runs in the process that is frozen. Tests thawd_share_equal_pages in copies: pages whose contents are equal to the
// image's are shared again, all others keep what the copy has written.

#include "harness.h"

#include <sys/ioctl.h>

#include "../pagemap.h"

#define PAGES 300
#define APART 100                   // pages on both sides, because pages near the thread's data are never given back
#define OF_FILE (UINT64_C(1) << 61) // Source: Documentation/admin-guide/mm/pagemap.rst

static void require_pagemap_scan(void) {
    struct pm_scan_arg arg = {.size = sizeof arg, .category_mask = PAGE_IS_PRESENT, .return_mask = PAGE_IS_PRESENT};
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK(fd >= 0);
    if (ioctl(fd, PAGEMAP_SCAN_REQUEST, &arg) < 0 && errno == ENOTTY)
        not_here("this kernel has no PAGEMAP_SCAN");
    close(fd);
}

// Whether this process shares the page with the image. Reads the page first, so that it is mapped.
static bool is_shared(const char *page) {
    uint64_t entry = *(const volatile char *)page;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK_EQUAL(pread(fd, &entry, sizeof entry, (off_t)((uintptr_t)page / PAGE * sizeof entry)), sizeof entry);
    close(fd);
    return entry & OF_FILE;
}

static char *image_pages(void) {
    char *memory = map_anonymous(PAGES + 2 * APART) + APART * PAGE;
    fill(memory, PAGES * PAGE, 1);
    CHECK_EQUAL(thawd_share_equal_pages(), 0); // this is not a copy yet
    return memory;
}

// Changes two of three pages, or undoes that.
static void change(char *memory) {
    for (size_t i = 0; i < PAGES; i++)
        if (i % 3)
            memory[i * PAGE + 7] ^= 1;
}

// Writes to all pages of a copy. Every third page then has its old contents again.
static void write_pages(char *memory) {
    for (size_t i = 0; i < PAGES; i++)
        ((volatile char *)memory)[i * PAGE + 7] = memory[i * PAGE + 7];
    change(memory);
}

// Gives the changed pages their old contents, checks all pages, and changes the pages again.
static void check_contents(char *memory) {
    change(memory);
    CHECK(filled(memory, PAGES * PAGE, 1));
    change(memory);
}

CASE(equal, "equal pages are shared again and other pages keep their contents, any number of times") {
    char *memory = image_pages();
    freeze_here();
    if (!copy)
        return;
    require_pagemap_scan();
    for (int round = 0; round < 3; round++) {
        write_pages(memory);
        for (size_t i = 0; i < PAGES; i++)
            CHECK(!is_shared(memory + i * PAGE));
        CHECK(thawd_share_equal_pages() >= PAGES / 3);
        check_contents(memory);
        for (size_t i = 0; i < PAGES; i++)
            CHECK_EQUAL(is_shared(memory + i * PAGE), i % 3 == 0);
        change(memory); // as in the image again, for the next round
        CHECK(thawd_share_equal_pages() >= PAGES * 2 / 3);
        CHECK(filled(memory, PAGES * PAGE, 1));
    }
}

CASE(read_only, "pages that may only be read are shared again, and pages that may not be read are left alone") {
    char *memory = image_pages(), *hidden = image_pages();
    freeze_here();
    if (!copy)
        return;
    require_pagemap_scan();
    write_pages(memory);
    write_pages(hidden);
    CHECK_EQUAL(mprotect(memory, PAGES * PAGE, PROT_READ), 0);
    CHECK_EQUAL(mprotect(hidden, PAGES * PAGE, PROT_NONE), 0);
    CHECK(thawd_share_equal_pages() >= PAGES / 3);
    CHECK_EQUAL(mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE), 0);
    CHECK_EQUAL(mprotect(hidden, PAGES * PAGE, PROT_READ | PROT_WRITE), 0);
    CHECK(is_shared(memory));
    CHECK(!is_shared(hidden));
    check_contents(memory);
    check_contents(hidden);
}

CASE(threads, "in a process with several threads, no page is given back until the others have ended") {
    char *memory = image_pages();
    struct worker worker;
    start_worker(&worker, count_rounds);
    freeze_here();
    write_pages(memory);
    CHECK_EQUAL(thawd_share_equal_pages(), 0);
    check_contents(memory);
    check_goes_on(&worker);
    stop_worker(&worker);
    if (!copy)
        return;
    require_pagemap_scan();
    for (int i = 0; i < 1000 && thawd_share_equal_pages() == 0; i++)
        rest(); // the kernel may count a thread that was joined a moment longer
    CHECK(is_shared(memory));
    check_contents(memory);
}

CASE(asynchronous_io, "in a process that the kernel writes to by itself, no page is given back") {
    char *memory = image_pages();
    freeze_here();
    write_pages(memory);
    unsigned long context = 0;
    if (syscall(SYS_io_setup, 1, &context) < 0)
        not_here("no asynchronous I/O");
    CHECK_EQUAL(thawd_share_equal_pages(), 0);
    check_contents(memory);
}

static _Atomic int handled;

static void count_signal(int number) {
    (void)number;
    handled++;
}

CASE(signals, "signals that arrive meanwhile are handled, and the mask of blocked signals stays") {
    char *memory = image_pages();
    signal(SIGALRM, count_signal);
    freeze_here();
    sigset_t before = {0}, after = {0};
    sigprocmask(SIG_SETMASK, NULL, &before);
    struct itimerspec every = {{0, 100000}, {0, 100000}};
    timer_t timer;
    CHECK_EQUAL(timer_create(CLOCK_MONOTONIC, NULL, &timer), 0);
    CHECK_EQUAL(timer_settime(timer, 0, &every, NULL), 0);
    for (int i = 0; i < 200; i++) {
        write_pages(memory);
        thawd_share_equal_pages();
        check_contents(memory);
        change(memory);
    }
    timer_delete(timer);
    sigprocmask(SIG_SETMASK, NULL, &after);
    CHECK(handled > 0);
    CHECK(!memcmp(&before, &after, sizeof before));
}
