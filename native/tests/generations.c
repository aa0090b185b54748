// Runs in the process that is frozen. Tests a copy that is frozen again, the copy of that copy, and so on. The runner
// thaws each image with one argument, the path of the next image. A copy that gets no argument checks itself and exits.

#include "harness.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#define PAGES 4000

static char *memory, *shared;
static int generation, file, event, epoll;
static struct worker worker;

static void prepare(void) {
    memory = map_anonymous(PAGES);
    fill(memory, PAGES * PAGE, 1);
    shared = map_pages(10, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(shared, 10 * PAGE, 2);
    file = make_file("data", 3, 3);
    lseek(file, 0, SEEK_SET);
    event = eventfd(0, 0);
    epoll = epoll_create1(0);
    struct epoll_event watch = {.events = EPOLLIN, .data.u64 = 44};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &watch), 0);
    start_worker(&worker, count_rounds);
}

// The original process is generation 0 and changes nothing. Generation g, the copy after g thaws, writes pages g * 10
// and g * 10 + 2, and releases page g * 10 + 1 by madvise. The next generation releases page g * 10 + 2. All other
// pages are unchanged.
static void check_and_change(void) {
    for (size_t i = 0; i < PAGES; i++) {
        char *page = memory + i * PAGE;
        int owner = (int)i / 10;
        bool changed = owner < generation && owner > 0;
        if (changed && (i % 10 == 0 || (i % 10 == 2 && owner == generation - 1)))
            CHECK(filled(page, PAGE, 1000 + i));
        else if (changed && i % 10 <= 2)
            CHECK(zeros(page, PAGE));
        else
            CHECK(filled(page, PAGE, 1 + i * PAGE / 8));
    }
    CHECK(filled(shared, 10 * PAGE, 2 + (uint64_t)(generation > 0 ? generation - 1 : 0)));
    CHECK_EQUAL(lseek(file, 0, SEEK_CUR), generation > 0 ? (generation - 1) * 10 : 0);
    if (generation > 0) {
        size_t page = (size_t)generation * 10;
        fill(memory + page * PAGE, PAGE, 1000 + page);
        fill(memory + (page + 2) * PAGE, PAGE, 1000 + page + 2);
        CHECK_EQUAL(madvise(memory + (page + 1) * PAGE, PAGE, MADV_DONTNEED), 0);
        CHECK(generation == 1 || madvise(memory + (page - 8) * PAGE, PAGE, MADV_DONTNEED) == 0);
        fill(shared, 10 * PAGE, 2 + (uint64_t)generation);
        lseek(file, 10 * generation, SEEK_SET);
    }
    check_goes_on(&worker);
    struct epoll_event got;
    uint64_t value;
    CHECK_EQUAL(epoll_wait(epoll, &got, 1, 0), 0);
    CHECK_EQUAL(eventfd_write(event, 1), 0);
    CHECK_EQUAL(epoll_wait(epoll, &got, 1, 0), 1);
    CHECK_EQUAL(got.data.u64, 44);
    CHECK_EQUAL(eventfd_read(event, &value), 0);
}

// Returns true in a copy. In the process that was frozen, returns only if the freeze was refused.
static bool freeze_next(const char *path) {
    int result = freeze_to(path, NULL, 0);
    if (result == FREEZE_FROZEN) {
        dprintf(1, "frozen\n");
        for (;;)
            pause();
    }
    if (result != FREEZE_THAWED)
        dprintf(1, "refused: %s\n", report.text);
    return result == FREEZE_THAWED;
}

CASE(again, "copies of a copy have what both generations wrote, and zeros where madvise has released pages") {
    prepare();
    check_and_change();
    const char *next = image_path;
    while (!runs_as("dry") && !runs_as("goes-on") && next) {
        char *path = strdup(next);
        if (!freeze_next(path))
            break;
        copy = true;
        generation++;
        check_and_change();
        next = report.arguments[0];
        free(path);
    }
    stop_worker(&worker);
}

CASE(forked_copy, "the child of a copy can be frozen, and thawed") {
    freeze_here();
    if (!copy || !report.arguments[0])
        return;
    char *path = strdup(report.arguments[0]);
    pid_t child = fork();
    if (child == 0) {
        copy = freeze_next(path);
        return;
    }
    waitpid(child, NULL, 0); // waits until the runner kills the child with its process group
}
