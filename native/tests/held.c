// Runs in the process that is frozen. Tests FREEZE_HOLD_THREADS: in a copy, the thread that called thawd_freeze
// continues alone until it calls thawd_release_threads.

#include "harness.h"

static _Atomic int main_rounds;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_locked, is_over;

CASE(others_wait, "in a copy, the other threads continue only when the thread that froze the process lets them") {
    struct worker workers[3] = {0};
    freeze_flags = FREEZE_HOLD_THREADS;
    for (int i = 0; i < 3; i++)
        start_worker(&workers[i], count_rounds);
    freeze_here();
    if (copy) {
        int before[3];
        for (int i = 0; i < 3; i++)
            before[i] = workers[i].rounds;
        usleep(30000);
        for (int i = 0; i < 3; i++)
            CHECK_EQUAL(workers[i].rounds, before[i]);
        CHECK_EQUAL(thawd_release_threads(), 1);
    }
    for (int i = 0; i < 3; i++) {
        check_goes_on(&workers[i]);
        stop_worker(&workers[i]);
    }
}

static void freeze_in_thread(struct worker *worker) {
    freeze_flags = FREEZE_HOLD_THREADS;
    freeze_here();
    if (copy) {
        int before = main_rounds;
        usleep(30000);
        CHECK_EQUAL(main_rounds, before);
        CHECK_EQUAL(thawd_release_threads(), 1);
    }
    worker->data = worker;
}

CASE(main_thread_waits, "if another thread froze the process, the main thread waits in a copy, too") {
    struct worker worker = {0};
    start_worker(&worker, freeze_in_thread);
    while (!worker.data) {
        main_rounds++;
        rest();
    }
    join_worker(&worker);
}

static void hold_mutex(struct worker *worker) {
    (void)worker;
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    is_locked = true;
    while (!copy && !is_over)
        rest();
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
}

CASE(lock_is_needed,
     "a thread with a lock that the freezing thread needs continues after five seconds; the release returns 0") {
    struct worker worker = {0};
    freeze_flags = FREEZE_HOLD_THREADS;
    start_worker(&worker, hold_mutex);
    WAIT_UNTIL(is_locked);
    freeze_here();
    is_over = true;
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    if (copy)
        CHECK_EQUAL(thawd_release_threads(), 0);
    join_worker(&worker);
}
