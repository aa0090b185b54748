// Runs in the process that is frozen. Tests the C library's allocator, which relies on madvise, mremap and brk.

#include "harness.h"

#include <malloc.h>

#define SLOTS 200

struct slot {
    uint64_t *memory;
    size_t words;
    uint64_t seed;
};

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static size_t some_words(uint64_t *state) {
    uint64_t kind = draw(state) % 100;
    return 1 + draw(state) % (kind < 70 ? 60 : kind < 95 ? 3000 : kind < 99 ? 40000 : 100000);
}

static void check_and_free(struct slot *slot) {
    if (slot->memory)
        CHECK(filled(slot->memory, slot->words * 8, slot->seed));
    free(slot->memory);
    slot->memory = NULL;
}

static void exercise(struct slot *slots, uint64_t *state, int rounds) {
    for (int i = 0; i < rounds; i++) {
        struct slot *slot = &slots[draw(state) % SLOTS];
        size_t words = some_words(state);
        if (slot->memory && draw(state) % 4 == 0) {
            size_t kept = words < slot->words ? words : slot->words;
            CHECK(filled(slot->memory, slot->words * 8, slot->seed));
            slot->memory = realloc(slot->memory, words * 8);
            CHECK(filled(slot->memory, kept * 8, slot->seed));
        } else {
            check_and_free(slot);
            bool cleared = draw(state) % 2;
            slot->memory = cleared ? calloc(words, 8) : malloc(words * 8);
            CHECK(slot->memory);
            CHECK(!cleared || zeros(slot->memory, words * 8));
        }
        slot->words = words;
        slot->seed = draw(state);
        fill(slot->memory, words * 8, slot->seed);
        if (draw(state) % 500 == 0)
            malloc_trim(0);
    }
}

static void allocate_and_check(struct worker *worker) {
    static __thread struct slot slots[SLOTS];
    uint64_t state = (uint64_t)worker->index;
    exercise(slots, &state, 600);
    worker->rounds = 1;
    while (!worker->stop) // the freeze happens during this loop
        exercise(slots, &state, 20);
    exercise(slots, &state, 600);
    for (int i = 0; i < SLOTS; i++)
        check_and_free(&slots[i]);
}

CASE(storm, "8 threads allocate, grow, clear and free during the freeze, with malloc_trim, and no byte is wrong") {
    struct worker workers[8] = {0};
    for (int i = 0; i < 8; i++) {
        workers[i].index = i + 1;
        start_worker(&workers[i], allocate_and_check);
    }
    for (int i = 0; i < 8; i++)
        WAIT_UNTIL(workers[i].rounds == 1);
    freeze_here();
    for (int i = 0; i < 8; i++)
        workers[i].stop = true;
    for (int i = 0; i < 8; i++)
        join_worker(&workers[i]);
}

static void fill_and_free(struct worker *worker) {
    char *blocks[200];
    for (int i = 0; i < 200; i++) {
        blocks[i] = malloc(60000);
        CHECK(blocks[i]);
        memset(blocks[i], 0xee, 60000);
    }
    worker->rounds = 1;
    while (!worker->stop)
        rest();
    for (int i = 199; i >= 0; i--)
        free(blocks[i]); // shrinks the thread's heap: MADV_DONTNEED in glibc's shrink_heap
    malloc_trim(0);
    for (int i = 0; i < 200; i++) {
        blocks[i] = calloc(1, 60000);
        CHECK(zeros(blocks[i], 60000));
        memset(blocks[i], 0xdd, 60000);
    }
}

CASE(cleared, "calloc returns zeros from heaps that shrank after the thaw, in the main thread and in others") {
    struct worker workers[3] = {0};
    for (int i = 0; i < 3; i++) {
        start_worker(&workers[i], fill_and_free);
        WAIT_UNTIL(workers[i].rounds == 1);
    }
    struct worker here = {.stop = true};
    char *blocks[100];
    for (int i = 0; i < 100; i++) {
        blocks[i] = malloc(100000);
        memset(blocks[i], 0xcc, 100000);
    }
    freeze_here();
    for (int i = 0; i < 3; i++)
        stop_worker(&workers[i]);
    for (int i = 0; i < 100; i++)
        free(blocks[i]);
    malloc_trim(0);
    fill_and_free(&here);
}

CASE(large_blocks, "large blocks with their own mappings can be freed, and calloc returns zeros for them again") {
    mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    char *blocks[20];
    for (int i = 0; i < 20; i++) {
        blocks[i] = malloc(MIB);
        fill(blocks[i], MIB, (uint64_t)i);
    }
    freeze_here();
    for (int i = 0; i < 20; i++)
        CHECK(filled(blocks[i], MIB, (uint64_t)i));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 20; i++)
            free(blocks[i]);
        for (int i = 0; i < 20; i++) {
            blocks[i] = calloc(1, MIB);
            CHECK(zeros(blocks[i], MIB));
            memset(blocks[i], round + 1, MIB);
        }
    }
}

CASE(larger_than_the_limit, "a copy has 120 MiB of memory from the image even if its RLIMIT_DATA is lower") {
    size_t bytes = 120 * MIB;
    char *memory = malloc(bytes);
    CHECK(memory);
    fill(memory, bytes, 1);
    freeze_here();
    CHECK(filled(memory, bytes, 1));
}
