// Runs in the process that is frozen. Cases of which thousands of copies are thawed. Each copy computes a sum again
// that the original printed before the freeze, with threads from before the freeze and with new threads, and must print
// the same number.

#include "harness.h"

#define WAITING 6
#define BUSY 5
#define SIDE 40 // width and height of the matrices
#define BLOCKS 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER, answered = PTHREAD_COND_INITIALIZER;
static uint64_t task, results[WAITING];
static int missing;

static __thread uint64_t seed;

// Multiplies two matrices that depend on `from`, and returns a sum over the product. The result is the same each time,
// because all numbers in it are small integers, with which floating-point arithmetic is exact.
static uint64_t multiply(uint64_t from) {
    static __thread double left[SIDE][SIDE], right[SIDE][SIDE];
    uint64_t sum = 0;
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            left[i][j] = (double)((from + (uint64_t)(i * 31 + j * 17)) % 64);
            right[i][j] = (double)((from * 3 + (uint64_t)(i * 13 + j * 7)) % 64);
        }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            double cell = 0;
            for (int k = 0; k < SIDE; k++)
                cell += left[i][k] * right[k][j];
            sum = sum * 31 + (uint64_t)cell;
        }
    return sum;
}

// Allocates blocks of many sizes, fills and checks them, and frees them in another order. Returns a sum over them.
static uint64_t allocate(uint64_t from) {
    uint64_t *blocks[BLOCKS], sum = 0;
    size_t bytes[BLOCKS];
    for (uint64_t i = 0; i < BLOCKS; i++) {
        bytes[i] = (16 + (from + i * 7919) % 40000) / 8 * 8;
        blocks[i] = i % 3 ? malloc(bytes[i]) : calloc(1, bytes[i]);
        CHECK(blocks[i] && (i % 3 || zeros(blocks[i], bytes[i])));
        fill(blocks[i], bytes[i], from + i);
    }
    for (uint64_t i = 0; i < BLOCKS; i++) {
        uint64_t at = i * 37 % BLOCKS;
        CHECK(filled(blocks[at], bytes[at], from + at));
        sum = sum * 31 + blocks[at][bytes[at] / 16];
        free(blocks[at]);
    }
    return sum;
}

// The function of a thread that waits on a condition for one task after the other, and stores each result.
static void answer(struct worker *worker) {
    uint64_t done = 0;
    seed = (uint64_t)worker->index * 1000003;
    CHECK_EQUAL(pthread_mutex_lock(&lock), 0);
    for (;;) {
        while (task == done)
            CHECK_EQUAL(pthread_cond_wait(&told, &lock), 0);
        done = task;
        if (worker->stop)
            break;
        CHECK_EQUAL(pthread_mutex_unlock(&lock), 0);
        uint64_t result = multiply(seed + done) ^ allocate(seed + done);
        CHECK_EQUAL(pthread_mutex_lock(&lock), 0);
        results[worker->index] = result;
        if (--missing == 0)
            CHECK_EQUAL(pthread_cond_signal(&answered), 0);
    }
    CHECK_EQUAL(pthread_mutex_unlock(&lock), 0);
}

static uint64_t ask_all(uint64_t number) {
    uint64_t sum = 0;
    struct timespec end = from_now_ms(CLOCK_REALTIME, DEADLINE_S * 1000);
    CHECK_EQUAL(pthread_mutex_lock(&lock), 0);
    task = number;
    missing = WAITING;
    CHECK_EQUAL(pthread_cond_broadcast(&told), 0);
    while (missing)
        CHECK_EQUAL(pthread_cond_timedwait(&answered, &lock, &end), 0);
    CHECK_EQUAL(pthread_mutex_unlock(&lock), 0);
    for (int i = 0; i < WAITING; i++)
        sum = sum * 31 + results[i];
    return sum;
}

static void stop_all(struct worker *workers) {
    CHECK_EQUAL(pthread_mutex_lock(&lock), 0);
    task = UINT64_MAX;
    for (int i = 0; i < WAITING; i++)
        workers[i].stop = true;
    CHECK_EQUAL(pthread_cond_broadcast(&told), 0);
    CHECK_EQUAL(pthread_mutex_unlock(&lock), 0);
    for (int i = 0; i < WAITING; i++)
        join_worker(&workers[i]);
}

static void work(struct worker *worker) {
    bool multiplies = worker->index % 2;
    uint64_t from = (uint64_t)worker->index, first = multiplies ? multiply(from) : allocate(from);
    while (!worker->stop) {
        CHECK_EQUAL(multiplies ? multiply(from) : allocate(from), first);
        if (++worker->rounds % 8 == 0)
            rest(); // leaves the processor to the other threads and copies
    }
}

static uint64_t start_one_and_join(void) {
    struct worker late = {.index = 77, .stop = true};
    start_worker(&late, work);
    join_worker(&late);
    return multiply(77) + allocate(78);
}

// Prints the sum once before the freeze, and once in each copy.
static void answer_twice(struct worker *busy, int busy_count) {
    static struct worker workers[WAITING];
    for (int i = 0; i < WAITING; i++) {
        workers[i].index = i;
        start_blocked_worker(&workers[i], answer, SYS_futex);
    }
    dprintf(1, "sum %lx\n", ask_all(1) ^ start_one_and_join());
    for (int i = 0; i < busy_count; i++) {
        busy[i].index = i;
        start_worker(&busy[i], work);
        check_goes_on(&busy[i]);
    }
    freeze_here();
    uint64_t first = ask_all(2); // first a new task, then the one from before the freeze
    CHECK(first);
    dprintf(1, "sum %lx\n", ask_all(1) ^ start_one_and_join());
    for (int i = 0; i < busy_count; i++) {
        check_goes_on(&busy[i]);
        stop_worker(&busy[i]);
    }
    stop_all(workers);
}

CASE(waiting, "six threads that wait for work do it in every copy, with the same result as before the freeze") {
    answer_twice(NULL, 0);
}

CASE(busy, "five more threads, which multiply matrices and allocate memory during the freeze, continue without error") {
    static struct worker busy[BUSY];
    answer_twice(busy, BUSY);
}
