// Runs in the process that is frozen. Tests threads that wait in the kernel at the freeze. Each keeps waiting in the
// copy, and wakes when the event for which it waits occurs.

#include "harness.h"

#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static _Atomic int turn;
static int pipe_ends[2];
static int event;

static void lock_it(struct worker *worker) {
    pthread_mutex_lock(&mutex);
    worker->rounds++;
    pthread_mutex_unlock(&mutex);
}

CASE(mutex_wait, "a thread that waits for a mutex gets it when its owner unlocks it") {
    struct worker workers[3] = {0};
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 3; i++)
        start_blocked_worker(&workers[i], lock_it, SYS_futex);
    freeze_here();
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(workers[i].rounds, 0);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < 3; i++) {
        join_worker(&workers[i]);
        CHECK_EQUAL(workers[i].rounds, 1);
    }
}

static void await_turn(struct worker *worker) {
    pthread_mutex_lock(&mutex);
    while (turn <= worker->index)
        pthread_cond_wait(&condition, &mutex);
    worker->rounds++;
    pthread_mutex_unlock(&mutex);
}

CASE(condition_wait, "threads that wait for a condition variable wake by signal and by broadcast") {
    struct worker workers[3] = {{.index = 0}, {.index = 1}, {.index = 1}};
    for (int i = 0; i < 3; i++)
        start_blocked_worker(&workers[i], await_turn, SYS_futex);
    freeze_here();
    for (int wanted = 1; wanted <= 2; wanted++) {
        pthread_mutex_lock(&mutex);
        turn = wanted;
        pthread_cond_broadcast(&condition);
        pthread_mutex_unlock(&mutex);
        join_worker(&workers[wanted - 1]);
        CHECK_EQUAL(workers[wanted - 1].rounds, 1);
    }
    join_worker(&workers[2]);
}

static void await_until(struct worker *worker) {
    struct timespec *end = worker->data;
    pthread_mutex_lock(&mutex);
    int result = 0;
    while (result == 0)
        result = pthread_cond_timedwait(&condition, &mutex, end);
    pthread_mutex_unlock(&mutex);
    worker->rounds = result;
}

CASE(timed_condition, "a wait for a condition with a time limit ends at that time in the copy, too") {
    struct timespec end = from_now_ms(CLOCK_REALTIME, 400);
    struct worker worker = {.data = &end};
    start_blocked_worker(&worker, await_until, SYS_futex);
    freeze_here();
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, ETIMEDOUT);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    CHECK(now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec));
}

static sem_t semaphore;

static void take_semaphore(struct worker *worker) {
    while (sem_wait(&semaphore) != 0)
        if (errno != EINTR)
            return;
    worker->rounds++;
}

CASE(semaphore_wait, "each sem_post in the copy wakes one of the threads that wait for the semaphore") {
    struct worker workers[2] = {0};
    CHECK_EQUAL(sem_init(&semaphore, 0, 0), 0);
    for (int i = 0; i < 2; i++)
        start_blocked_worker(&workers[i], take_semaphore, SYS_futex);
    freeze_here();
    sem_post(&semaphore);
    WAIT_UNTIL(workers[0].rounds + workers[1].rounds == 1);
    sem_post(&semaphore);
    join_worker(&workers[0]);
    join_worker(&workers[1]);
    CHECK_EQUAL(workers[0].rounds + workers[1].rounds, 2);
}

static void nap(struct worker *worker) {
    while (!worker->stop) {
        struct timespec rest = {.tv_nsec = 3000000};
        while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
            ;
        worker->rounds++;
    }
}

CASE(sleep_loop, "a thread in a loop of short sleeps continues") {
    struct worker worker = {0};
    start_blocked_worker(&worker, nap, SYS_clock_nanosleep);
    freeze_here();
    check_goes_on(&worker);
    check_goes_on(&worker);
    stop_worker(&worker);
}

static void sleep_until(struct worker *worker) {
    struct timespec *end = worker->data;
    int result;
    while ((result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, end, NULL)) == EINTR)
        ;
    worker->rounds = result == 0 ? 1 : -result;
}

CASE(sleep_until_time, "a sleep until a time of the monotonic clock ends at that time") {
    struct timespec end = from_now_ms(CLOCK_MONOTONIC, 400);
    struct worker worker = {.data = &end};
    start_blocked_worker(&worker, sleep_until, SYS_clock_nanosleep);
    freeze_here();
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 1);
    CHECK(now_s() >= (double)end.tv_sec + (double)end.tv_nsec * 1e-9);
}

static void read_byte(struct worker *worker) {
    char byte = 0;
    ssize_t got;
    while ((got = read(pipe_ends[0], &byte, 1)) < 0 && errno == EINTR)
        ;
    worker->rounds = got == 1 ? byte : -1;
}

CASE(pipe_read, "a thread that reads from an empty pipe gets the data that is written in the copy") {
    struct worker worker = {0};
    CHECK_EQUAL(pipe(pipe_ends), 0);
    start_blocked_worker(&worker, read_byte, SYS_read);
    freeze_here();
    CHECK_EQUAL(write(pipe_ends[1], "x", 1), 1);
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 'x');
}

static void write_much(struct worker *worker) {
    static char much[3 * 65536];
    fill(much, sizeof much, 5);
    size_t done = 0;
    while (done < sizeof much) {
        ssize_t wrote = write(pipe_ends[1], much + done, sizeof much - done);
        if (wrote < 0 && errno != EINTR)
            break;
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    worker->rounds = (int)done;
}

CASE(pipe_write, "a thread that writes to a full pipe continues when it is drained; no byte is lost or duplicated") {
    struct worker worker = {0};
    CHECK_EQUAL(pipe(pipe_ends), 0);
    start_blocked_worker(&worker, write_much, SYS_write);
    freeze_here();
    static char all[3 * 65536];
    for (size_t done = 0; done < sizeof all;) {
        ssize_t got = read(pipe_ends[0], all + done, sizeof all - done);
        CHECK(got > 0);
        done += (size_t)got;
    }
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, sizeof all);
    CHECK(filled(all, sizeof all, 5));
}

static void wait_for_event(struct worker *worker) {
    struct epoll_event got;
    int count;
    while ((count = epoll_wait((int)worker->index, &got, 1, -1)) < 0 && errno == EINTR)
        ;
    uint64_t value = 0;
    if (count == 1 && got.data.u64 == 0xfeedbeefcafe && read(event, &value, 8) == 8)
        worker->rounds = (int)value;
}

CASE(epoll_wait_on_eventfd, "an eventfd that was added before the freeze wakes a thread in epoll_wait") {
    event = eventfd(0, 0);
    int epoll = epoll_create1(0);
    struct epoll_event watch = {.events = EPOLLIN, .data.u64 = 0xfeedbeefcafe};
    CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &watch), 0);
    struct worker worker = {.index = epoll};
    start_blocked_worker(&worker, wait_for_event, SYS_epoll_wait);
    freeze_here();
    CHECK_EQUAL(worker.rounds, 0);
    CHECK_EQUAL(eventfd_write(event, 7), 0);
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 7);
}

static void poll_pipe(struct worker *worker) {
    struct pollfd watch = {.fd = pipe_ends[0], .events = POLLIN};
    int count;
    while ((count = poll(&watch, 1, -1)) < 0 && errno == EINTR)
        ;
    worker->rounds = count == 1 && watch.revents == POLLIN;
}

static void select_pipe(struct worker *worker) {
    fd_set watch;
    int count;
    do {
        FD_ZERO(&watch);
        FD_SET(pipe_ends[0], &watch);
        count = select(pipe_ends[0] + 1, &watch, NULL, NULL, NULL);
    } while (count < 0 && errno == EINTR);
    worker->rounds = count == 1 && FD_ISSET(pipe_ends[0], &watch);
}

CASE(poll_and_select, "data that is written to a pipe in the copy wakes threads that wait in poll and select") {
    struct worker poller = {0}, selector = {0};
    CHECK_EQUAL(pipe(pipe_ends), 0);
    start_blocked_worker(&poller, poll_pipe, SYS_poll);
    start_worker(&selector, select_pipe);
    WAIT_UNTIL(blocked_in(selector.tid) == SYS_pselect6 || blocked_in(selector.tid) == SYS_select);
    freeze_here();
    CHECK_EQUAL(write(pipe_ends[1], "x", 1), 1);
    join_worker(&poller);
    join_worker(&selector);
    CHECK(poller.rounds == 1 && selector.rounds == 1);
}

static void take_signal(struct worker *worker) {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    siginfo_t info;
    int number;
    while ((number = sigwaitinfo(&wanted, &info)) < 0 && errno == EINTR)
        ;
    worker->rounds = number == SIGUSR1 ? info.si_value.sival_int : -1;
}

CASE(signal_wait, "a thread in sigwaitinfo gets a signal that is sent in the copy") {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, &blocked, NULL), 0);
    struct worker worker = {0};
    start_blocked_worker(&worker, take_signal, SYS_rt_sigtimedwait);
    freeze_here();
    CHECK_EQUAL(pthread_sigqueue(worker.thread, SIGUSR1, (union sigval){.sival_int = 77}), 0);
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, 77);
}

static void freeze_behind_main(struct worker *worker) {
    WAIT_UNTIL(blocked_in(getpid()) == SYS_futex);
    freeze_here();
    worker->rounds = 5;
}

CASE(main_waits, "a thread can freeze the process while the main thread waits to join it") {
    struct worker worker = {0};
    start_worker(&worker, freeze_behind_main);
    void *result;
    CHECK_EQUAL(pthread_join(worker.thread, &result), 0);
    CHECK(result == &worker);
    CHECK_EQUAL(worker.rounds, 5);
}
