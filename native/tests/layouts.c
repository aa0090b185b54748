// Runs in the process that is frozen. Tests memory in very many pieces. Layouts are random. Each has a mapping with
// more than 512 runs of used pages, because Linux reports at most 512 runs at a time (fs/proc/task_mmu.c,
// PAGEMAP_WALK_SIZE), so that the freeze must ask more than once. THAWD_LAYOUT is the random seed.

#include "harness.h"

#define AREAS 4
#define LEAST_RUNS 620
#define MOST_RUNS 1100
#define FILE_PAGES 4000

// How long the gaps between the runs of an area are. The freeze stores short gaps together with the runs around them.
enum gaps { ALL_LONG, ALL_SHORT, MIXED };

struct area {
    char *memory;
    size_t pages;
    uint64_t seed; // random seed for the runs
    enum gaps gaps;
    bool of_file;
};

static struct area areas[AREAS];

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static uint64_t between(uint64_t *state, uint64_t least, uint64_t most) {
    return least + draw(state) % (most - least + 1);
}

static size_t gap(enum gaps gaps, uint64_t *state) {
    bool is_long = gaps == ALL_LONG || (gaps == MIXED && draw(state) % 4 == 0);
    return is_long ? between(state, 16, 24) : between(state, 1, 5);
}

static size_t run(uint64_t *state) {
    return between(state, 1, 3);
}

// Returns the number of pages that `runs` runs of an area take, including the gap before each.
static size_t pages_of(const struct area *area, uint64_t runs) {
    uint64_t state = area->seed, pages = 0;
    for (; runs; runs--) {
        pages += gap(area->gaps, &state);
        pages += run(&state);
    }
    return pages;
}

// With `check` false, writes the runs of an area. With `check` true, checks that the runs and gaps are unchanged.
static void walk(const struct area *area, bool check) {
    uint64_t state = area->seed;
    for (size_t at = 0; at < area->pages;) {
        for (size_t end = at + gap(area->gaps, &state); at < end && at < area->pages; at++) {
            char *page = area->memory + at * PAGE;
            if (check)
                CHECK(area->of_file ? filled(page, PAGE, 5 + at * PAGE / 8) : zeros(page, PAGE));
        }
        for (size_t end = at + run(&state); at < end && at < area->pages; at++) {
            char *page = area->memory + at * PAGE;
            if (check)
                CHECK(filled(page, PAGE, area->seed + at));
            else
                fill(page, PAGE, area->seed + at);
        }
    }
}

static uint64_t layout(void) {
    const char *number = getenv("THAWD_LAYOUT");
    return number ? strtoull(number, NULL, 10) : 1;
}

static void draw_areas(void) {
    uint64_t state = layout() * 7919 + 1;
    for (int i = 0; i < AREAS; i++) {
        struct area *area = &areas[i];
        *area = (struct area){.seed = draw(&state), .gaps = i ? draw(&state) % 3 : ALL_LONG, .of_file = i == 1};
        if (area->of_file) {
            area->pages = FILE_PAGES;
            int fd = make_file("data", area->pages, 5);
            area->memory = map_pages(area->pages, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
            close(fd);
        } else {
            area->pages = pages_of(area, between(&state, LEAST_RUNS, MOST_RUNS));
            area->memory = map_anonymous(area->pages);
        }
        walk(area, false);
        if (i && draw(&state) % 2) // divides some areas into several mappings
            CHECK_EQUAL(mprotect(area->memory + area->pages / 3 * PAGE, area->pages / 5 * PAGE, PROT_READ), 0);
    }
}

CASE(random_layout, "every page of mappings with hundreds of runs of used pages, also of a file, is restored") {
    draw_areas();
    freeze_here();
    for (int i = 0; i < AREAS; i++)
        walk(&areas[i], true);
}

CASE(fragmented_heap, "a heap in which only every third of 20,000 blocks is still allocated is unchanged in a copy") {
    enum { BLOCKS = 20000, BYTES = 6000 };
    static void *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i] = malloc(BYTES));
        fill(blocks[i], BYTES, i);
    }
    for (size_t i = 0; i < BLOCKS; i++)
        if (i % 3)
            free(blocks[i]);
    freeze_here();
    for (size_t i = 0; i < BLOCKS; i += 3)
        CHECK(filled(blocks[i], BYTES, i));
}
