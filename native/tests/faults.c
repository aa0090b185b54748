// Runs in the process that is frozen. Makes a freeze fail at each fault point, a named place in the engine at which
// tests can cause an error. Afterwards the process continues unchanged, no file is left, and the next freeze works.

#include "refusing.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

static char points[512];

static void list_points(void) {
    struct freeze_request request = {.bytes = sizeof request, .path = image_path, .fail_at = "?"};
    report = (struct freeze_report){.bytes = sizeof report};
    CHECK_EQUAL(thawd_freeze(&request, &report), FREEZE_FAILED);
    strcpy(points, report.text);
    dprintf(1, "points: %s\n", points);
}

// Returns the number of mappings of this process. Under the address sanitizer it returns 0, because the sanitizer's
// allocator keeps freed memory in mappings of its own, so their number would change.
static int count_mappings(void) {
    if (getenv("ASAN_OPTIONS"))
        return 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps);
    int count = 0, byte;
    while ((byte = fgetc(maps)) != EOF)
        count += byte == '\n';
    fclose(maps);
    return count;
}

CASE(every_point, "after a failure at any point the process is unharmed, and a freeze without a failure works") {
    struct worker sleeper = {0};
    char *memory = map_anonymous(100);
    int event = eventfd(3, 0), epoll = epoll_create1(0), ends[2], before = 0;
    struct epoll_event watch = {.events = EPOLLIN, .data.u64 = 9};
    fill(memory, 100 * PAGE, 1);
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_EQUAL(write(ends[1], "contents", 8), 8);
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &watch), 0);
    start_worker(&sleeper, count_rounds);
    begin();
    if (!runs_as("dry")) {
        list_points();
        char *rest = points;
        for (char *name; (name = strsep(&rest, ",")); before++) {
            int mappings = count_mappings();
            CHECK_EQUAL(setenv("FREEZE_FAIL_AT", name, 1), 0);
            expect_no_freeze(image_path, FREEZE_FAILED, name, "");
            CHECK_EQUAL(count_mappings(), mappings);
            check_goes_on(&sleeper);
        }
        CHECK(before >= 10);
        CHECK_EQUAL(unsetenv("FREEZE_FAIL_AT"), 0);
    }
    freeze_after_all();
    CHECK(filled(memory, 100 * PAGE, 1));
    CHECK_EQUAL(epoll_wait(epoll, &watch, 1, 0), 1);
    char text[16];
    CHECK_EQUAL(read(ends[0], text, sizeof text), 8);
    stop_worker(&sleeper);
}
