// Runs in the process that is frozen. Tests locks of the C library that store thread ids or counts.

#include "harness.h"

static pthread_mutex_t mutex;
static _Atomic bool may_go_on;

static void make_mutex(int kind, int robustness, int protocol) {
    pthread_mutexattr_t attributes;
    CHECK_EQUAL(pthread_mutexattr_init(&attributes), 0);
    CHECK_EQUAL(pthread_mutexattr_settype(&attributes, kind), 0);
    CHECK_EQUAL(pthread_mutexattr_setrobust(&attributes, robustness), 0);
    CHECK_EQUAL(pthread_mutexattr_setprotocol(&attributes, protocol), 0);
    CHECK_EQUAL(pthread_mutex_init(&mutex, &attributes), 0);
}

static void lock_and_count(struct worker *worker) {
    while (!worker->stop) {
        CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
        worker->rounds++;
        CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
    }
}

static void check_contended(void) {
    struct worker workers[2] = {0};
    start_worker(&workers[0], lock_and_count);
    start_worker(&workers[1], lock_and_count);
    check_goes_on(&workers[0]);
    check_goes_on(&workers[1]);
    stop_worker(&workers[0]);
    stop_worker(&workers[1]);
}

CASE(recursive, "a recursive mutex that is free at the freeze counts its owner's locks in the copy") {
    make_mutex(PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
    freeze_here();
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), EPERM);
    check_contended();
}

CASE(error_checking, "an error-checking mutex that is free at the freeze reports wrong uses in the copy") {
    make_mutex(PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
    freeze_here();
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    CHECK_EQUAL(pthread_mutex_lock(&mutex), EDEADLK);
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), EPERM);
    check_contended();
}

CASE(inheriting, "a mutex with priority inheritance that is free at the freeze works in the copy") {
    make_mutex(PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_INHERIT);
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
    freeze_here();
    check_contended();
}

CASE(held_normal, "a plain mutex that a thread holds at the freeze is still held by that thread in the copy") {
    make_mutex(PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    freeze_here();
    CHECK_EQUAL(pthread_mutex_trylock(&mutex), EBUSY);
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
    check_contended();
}

static void lock_and_die(struct worker *worker) {
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    worker->rounds = 1;
    while (!may_go_on)
        rest();
}

CASE(robust, "if the owner of a robust mutex dies in the copy, the next owner is notified") {
    make_mutex(PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE);
    struct worker owner = {0};
    start_worker(&owner, lock_and_die);
    WAIT_UNTIL(owner.rounds == 1);
    freeze_here();
    CHECK_EQUAL(pthread_mutex_trylock(&mutex), EBUSY);
    may_go_on = true;
    join_worker(&owner);
    struct timespec end = from_now_ms(CLOCK_REALTIME, DEADLINE_S * 1000);
    CHECK_EQUAL(pthread_mutex_timedlock(&mutex, &end), EOWNERDEAD);
    CHECK_EQUAL(pthread_mutex_consistent(&mutex), 0);
    CHECK_EQUAL(pthread_mutex_unlock(&mutex), 0);
    check_contended();
}

static void unlock_later(struct worker *worker) {
    CHECK_EQUAL(pthread_mutex_lock(&mutex), 0);
    worker->rounds = 1;
    while (!may_go_on)
        rest();
    worker->rounds = pthread_mutex_unlock(&mutex) == 0 ? 2 : -1;
}

CASE(robust_unlocked, "the owner of a robust mutex that was held at the freeze can unlock it in the copy") {
    make_mutex(PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE);
    struct worker owner = {0};
    start_worker(&owner, unlock_later);
    WAIT_UNTIL(owner.rounds == 1);
    freeze_here();
    may_go_on = true;
    join_worker(&owner);
    CHECK_EQUAL(owner.rounds, 2);
    check_contended();
}

static pthread_rwlock_t shared_lock = PTHREAD_RWLOCK_INITIALIZER;

static void read_and_count(struct worker *worker) {
    while (!worker->stop) {
        CHECK_EQUAL(pthread_rwlock_rdlock(&shared_lock), 0);
        worker->rounds++;
        CHECK_EQUAL(pthread_rwlock_unlock(&shared_lock), 0);
    }
}

static void write_once(struct worker *worker) {
    CHECK_EQUAL(pthread_rwlock_wrlock(&shared_lock), 0);
    worker->rounds = 1;
    CHECK_EQUAL(pthread_rwlock_unlock(&shared_lock), 0);
}

CASE(read_write_lock, "a read-write lock stays locked for reading, and a thread that waits to write keeps waiting") {
    struct worker readers[2] = {0}, writer = {0};
    CHECK_EQUAL(pthread_rwlock_rdlock(&shared_lock), 0);
    start_worker(&readers[0], read_and_count);
    start_worker(&readers[1], read_and_count);
    check_goes_on(&readers[0]);
    start_blocked_worker(&writer, write_once, SYS_futex);
    freeze_here();
    CHECK_EQUAL(writer.rounds, 0);
    CHECK_EQUAL(pthread_rwlock_unlock(&shared_lock), 0);
    for (int i = 0; i < 2; i++) // the readers end first, because they may starve the writer
        stop_worker(&readers[i]);
    join_worker(&writer);
    CHECK_EQUAL(writer.rounds, 1);
    CHECK_EQUAL(pthread_rwlock_trywrlock(&shared_lock), 0);
}

static pthread_barrier_t barrier;

static void pass_barrier(struct worker *worker) {
    for (int i = 0; i < 10; i++) {
        pthread_barrier_wait(&barrier);
        worker->rounds++;
    }
}

CASE(barriers, "a barrier that some threads have reached opens when the last thread reaches it in the copy") {
    struct worker workers[3] = {0};
    CHECK_EQUAL(pthread_barrier_init(&barrier, NULL, 4), 0);
    for (int i = 0; i < 3; i++)
        start_blocked_worker(&workers[i], pass_barrier, SYS_futex);
    freeze_here();
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(workers[i].rounds, 0);
    for (int i = 0; i < 10; i++)
        pthread_barrier_wait(&barrier);
    for (int i = 0; i < 3; i++) {
        join_worker(&workers[i]);
        CHECK_EQUAL(workers[i].rounds, 10);
    }
}

static pthread_once_t once = PTHREAD_ONCE_INIT, later = PTHREAD_ONCE_INIT;
static int initialised;

static void initialise(void) {
    initialised++;
}

CASE(once_only, "pthread_once does not repeat an initialisation that happened before the freeze") {
    CHECK_EQUAL(pthread_once(&once, initialise), 0);
    freeze_here();
    CHECK_EQUAL(pthread_once(&once, initialise), 0);
    CHECK_EQUAL(initialised, 1);
    CHECK_EQUAL(pthread_once(&later, initialise), 0);
    CHECK_EQUAL(initialised, 2);
}
