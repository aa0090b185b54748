// Runs in the process that is frozen. Tests threads and their ids. In the copy every thread has a new id, and functions
// of the C library that use ids work for threads from before the freeze and for new threads.

#include "harness.h"

#include <dirent.h>
#include <sys/prctl.h>

static _Atomic int handled_by;
static _Atomic bool may_freeze;

static void note_thread(int number) {
    (void)number;
    handled_by = gettid();
}

static int threads_listed(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void report_id(struct worker *worker) {
    while (!worker->stop) {
        worker->data = (void *)(long)gettid();
        worker->rounds++;
        rest();
    }
}

CASE(ids, "ids are those of the new process, and thawd_new_tid maps old ids to new ones") {
    struct worker worker = {0};
    start_worker(&worker, report_id);
    int old_pid = getpid(), old_tid = worker.tid;
    freeze_here();
    check_goes_on(&worker);
    check_goes_on(&worker);
    int tid = (int)(long)worker.data;
    CHECK_EQUAL(gettid(), getpid());
    CHECK(tid != getpid());
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d", getpid(), tid);
    CHECK_EQUAL(access(path, F_OK), 0);
    if (copy) {
        CHECK(getpid() != old_pid);
        CHECK_EQUAL(thawd_new_tid(old_pid), getpid());
        CHECK_EQUAL(thawd_new_tid(old_tid), tid);
        CHECK_EQUAL(thawd_new_tid(1), 0);
    } else {
        CHECK_EQUAL(thawd_new_tid(old_tid), 0);
    }
    stop_worker(&worker);
}

CASE(signals_to_threads, "pthread_kill reaches exactly the given thread, old or new") {
    struct worker workers[3] = {0}, late = {0};
    signal(SIGUSR1, note_thread);
    for (int i = 0; i < 3; i++)
        start_worker(&workers[i], report_id);
    freeze_here();
    for (int i = 0; i < 3; i++) {
        check_goes_on(&workers[i]);
        check_goes_on(&workers[i]);
        handled_by = 0;
        CHECK_EQUAL(pthread_kill(workers[i].thread, SIGUSR1), 0);
        WAIT_UNTIL(handled_by == (int)(long)workers[i].data);
        handled_by = 0;
        CHECK_EQUAL(syscall(SYS_tgkill, getpid(), (int)(long)workers[i].data, SIGUSR1), 0);
        WAIT_UNTIL(handled_by == (int)(long)workers[i].data);
    }
    start_worker(&late, report_id);
    CHECK_EQUAL(pthread_kill(late.thread, SIGUSR1), 0);
    WAIT_UNTIL(handled_by == late.tid);
    stop_worker(&late);
    for (int i = 0; i < 3; i++)
        stop_worker(&workers[i]);
}

static void await_stop(struct worker *worker) {
    while (!worker->stop)
        rest();
}

CASE(names, "threads keep their names, and can be given new ones") {
    struct worker worker = {0};
    char name[16] = "";
    start_worker(&worker, await_stop);
    CHECK_EQUAL(pthread_setname_np(worker.thread, "a worker's name"), 0);
    CHECK_EQUAL(pthread_setname_np(pthread_self(), "main's name"), 0);
    freeze_here();
    CHECK_EQUAL(pthread_getname_np(worker.thread, name, sizeof name), 0);
    CHECK(strcmp(name, "a worker's name") == 0);
    CHECK_EQUAL(prctl(PR_GET_NAME, name), 0);
    CHECK(strcmp(name, "main's name") == 0);
    CHECK_EQUAL(pthread_setname_np(worker.thread, "another"), 0);
    CHECK_EQUAL(pthread_getname_np(worker.thread, name, sizeof name), 0);
    CHECK(strcmp(name, "another") == 0);
    stop_worker(&worker);
}

static void end_quickly(struct worker *worker) {
    worker->rounds++;
}

CASE(new_threads, "threads can start and end in the copy while a thread from before the freeze runs") {
    struct worker old = {0};
    start_worker(&old, count_rounds);
    freeze_here();
    for (int i = 0; i < 50; i++) {
        struct worker pair[2] = {0};
        start_worker(&pair[0], end_quickly);
        start_worker(&pair[1], end_quickly);
        join_worker(&pair[0]);
        join_worker(&pair[1]);
        CHECK_EQUAL(pair[0].rounds + pair[1].rounds, 2);
    }
    check_goes_on(&old);
    stop_worker(&old);
}

static void *end_before_freeze(void *argument) {
    return argument;
}

CASE(ended_threads, "a thread that ended before the freeze and was not joined can be joined in the copy") {
    pthread_t thread;
    int mark = 0;
    CHECK_EQUAL(pthread_create(&thread, NULL, end_before_freeze, &mark), 0);
    WAIT_UNTIL(threads_listed() == 1);
    freeze_here();
    void *result = NULL;
    CHECK_EQUAL(pthread_join(thread, &result), 0);
    CHECK(result == &mark);
}

static void *count_detached(void *argument) {
    struct worker *worker = argument;
    count_rounds(worker);
    return NULL;
}

CASE(detached_thread, "a detached thread ends in the copy, and nothing of it is left") {
    struct worker worker = {0};
    CHECK_EQUAL(pthread_create(&worker.thread, NULL, count_detached, &worker), 0);
    CHECK_EQUAL(pthread_detach(worker.thread), 0);
    WAIT_UNTIL(worker.rounds);
    freeze_here();
    check_goes_on(&worker);
    CHECK_EQUAL(threads_listed(), 2);
    worker.stop = true;
    WAIT_UNTIL(threads_listed() == 1);
}

static _Atomic int cleaned;

static void clean(void *argument) {
    cleaned += *(int *)argument;
}

static void *wait_to_be_cancelled(void *argument) {
    pthread_cleanup_push(clean, argument);
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return NULL;
}

CASE(cancel, "a thread that is blocked at the freeze is cancelled in the copy, with its clean-up") {
    pthread_t thread;
    int amount = 3;
    CHECK_EQUAL(pthread_create(&thread, NULL, wait_to_be_cancelled, &amount), 0);
    WAIT_UNTIL(threads_listed() == 2);
    freeze_here();
    CHECK_EQUAL(pthread_cancel(thread), 0);
    void *result = NULL;
    CHECK_EQUAL(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK_EQUAL(cleaned, 3);
}

CASE(credentials, "glibc changes the credentials of all threads by signal 33, after the freeze as before") {
    struct worker workers[4] = {0};
    for (int i = 0; i < 4; i++)
        start_worker(&workers[i], count_rounds);
    CHECK_EQUAL(setgid(getgid()), 0);
    freeze_here();
    CHECK_EQUAL(setgid(getgid()), 0);
    CHECK_EQUAL(setresuid(-1, getuid(), -1), 0);
    for (int i = 0; i < 4; i++) {
        check_goes_on(&workers[i]);
        stop_worker(&workers[i]);
    }
}

static void freeze_from_here(struct worker *worker) {
    WAIT_UNTIL(may_freeze);
    freeze_here();
    worker->rounds = 1;
    worker->data = (void *)(long)gettid();
}

CASE(freeze_elsewhere, "a thread other than the main thread can freeze while the main thread and others run") {
    struct worker freezer = {0}, other = {0};
    start_worker(&other, count_rounds);
    start_worker(&freezer, freeze_from_here);
    may_freeze = true;
    WAIT_UNTIL(freezer.rounds == 1);
    join_worker(&freezer);
    CHECK((int)(long)freezer.data != getpid());
    CHECK_EQUAL(gettid(), getpid());
    check_goes_on(&other);
    stop_worker(&other);
}

CASE(sixty_four, "64 threads, some running and some waiting, all continue") {
    static struct worker workers[64];
    for (int i = 0; i < 64; i++)
        start_worker(&workers[i], i % 4 == 0 ? count_rounds : await_stop);
    freeze_here();
    CHECK_EQUAL(threads_listed(), 65);
    for (int i = 0; i < 64; i += 4)
        check_goes_on(&workers[i]);
    for (int i = 0; i < 64; i++)
        stop_worker(&workers[i]);
    CHECK_EQUAL(threads_listed(), 1);
}

static void spend_time(struct worker *worker) {
    while (!worker->stop)
        worker->rounds++;
}

CASE(thread_clock, "the processor time of a thread from before the freeze can be read in the copy") {
    struct worker worker = {0};
    start_worker(&worker, spend_time);
    freeze_here();
    clockid_t clock;
    struct timespec first, later;
    CHECK_EQUAL(pthread_getcpuclockid(worker.thread, &clock), 0);
    CHECK_EQUAL(clock_gettime(clock, &first), 0);
    do {
        check_goes_on(&worker);
        CHECK_EQUAL(clock_gettime(clock, &later), 0);
    } while (later.tv_sec == first.tv_sec && later.tv_nsec == first.tv_nsec);
    stop_worker(&worker);
}

CASE(no_thread, "a process with a single thread is restored") {
    freeze_here();
    CHECK_EQUAL(threads_listed(), 1);
}
