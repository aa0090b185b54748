// Runs in the process that is frozen. Tests the clocks that count from the machine's start in copies on a machine that
// was started later. The runner freezes this program in a time namespace in which these clocks are far ahead, and thaws
// it outside of that namespace: there they are far behind, as after a restart.

#include "harness.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <x86intrin.h>

#define CLOCKS 4
static const clockid_t clocks[CLOCKS] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME};
static double readings[CLOCKS];

static double reading(clockid_t clock, bool by_call) {
    struct timespec now;
    CHECK_EQUAL(by_call ? syscall(SYS_clock_gettime, clock, &now) : clock_gettime(clock, &now), 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void read_clocks(void) {
    for (int i = 0; i < CLOCKS; i++)
        readings[i] = reading(clocks[i], false);
}

static void check_clocks(void) {
    for (int i = 0; i < CLOCKS; i++)
        for (int by_call = 0; by_call <= 1; by_call++) {
            double now = reading(clocks[i], by_call);
            CHECK(now >= readings[i] && now < readings[i] + 600);
        }
}

CASE(ages, "times that the process remembers are in the past, and recent, for each clock, by vDSO and by system call") {
    read_clocks();
    freeze_here();
    check_clocks();
    CHECK(report.restore_ns < UINT64_C(600000000000));
}

CASE(ticks, "the time that times(2) returns goes on") {
    clock_t before = times(NULL);
    freeze_here();
    clock_t later = times(NULL), least = copy && report.arguments[0] ? atol(report.arguments[0]) : before;
    CHECK(later >= least && later < least + 60000);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition;

static void await_deadline(struct worker *worker) {
    struct timespec *end = worker->data;
    pthread_mutex_lock(&mutex);
    int result = 0;
    while (result == 0)
        result = pthread_cond_timedwait(&condition, &mutex, end);
    pthread_mutex_unlock(&mutex);
    worker->rounds = result;
}

CASE(deadline, "a thread that waits for a condition until a time of the monotonic clock wakes at that time") {
    pthread_condattr_t attributes;
    CHECK_EQUAL(pthread_condattr_init(&attributes), 0);
    CHECK_EQUAL(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC), 0);
    CHECK_EQUAL(pthread_cond_init(&condition, &attributes), 0);
    struct timespec end = from_now_ms(CLOCK_MONOTONIC, 400);
    struct worker worker = {.data = &end};
    start_blocked_worker(&worker, await_deadline, SYS_futex);
    freeze_here();
    join_worker(&worker);
    CHECK_EQUAL(worker.rounds, ETIMEDOUT);
    CHECK(now_s() >= (double)end.tv_sec + (double)end.tv_nsec * 1e-9);
}

CASE(deadline_to_come, "a time that had not come at the freeze has not come in the copy") {
    struct timespec end = from_now_ms(CLOCK_MONOTONIC, 500000);
    int timer = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK);
    struct itimerspec when = {.it_value = from_now_ms(CLOCK_BOOTTIME, 500000)}, left;
    CHECK_EQUAL(timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL), 0);
    freeze_here();
    double left_s = (double)end.tv_sec + (double)end.tv_nsec * 1e-9 - now_s();
    CHECK(left_s > 0 && left_s <= 500);
    CHECK_EQUAL(timerfd_gettime(timer, &left), 0);
    CHECK(left.it_value.tv_sec > 0 && left.it_value.tv_sec <= 500);
}

static void tick(struct worker *worker) {
    struct timespec next;
    CHECK_EQUAL(clock_gettime(CLOCK_MONOTONIC, &next), 0);
    while (!worker->stop) {
        next.tv_nsec += 2000000;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL) == EINTR)
            ;
        worker->rounds++;
    }
}

CASE(ticker, "a thread that sleeps from one time of the monotonic clock to the next keeps its pace") {
    struct worker worker = {0};
    start_blocked_worker(&worker, tick, SYS_clock_nanosleep);
    freeze_here();
    check_goes_on(&worker);
    check_goes_on(&worker);
    stop_worker(&worker);
}

static void *same_clock(void *unused) {
    (void)unused;
    check_clocks();
    return NULL;
}

CASE(descendants, "new threads, child processes and the programs that they execute have the copy's clocks") {
    read_clocks();
    freeze_here();
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, same_clock, NULL), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check_clocks();
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    char command[128];
    snprintf(command, sizeof command, "awk '{ exit !($1 >= %.0f) }' /proc/uptime", readings[3] - 1);
    CHECK_EQUAL(system(command), 0);
}

// Nanoseconds of the monotonic clock in which the time stamp counter counts `ticks`.
static double duration_of(uint64_t ticks) {
    uint64_t start = __rdtsc();
    double from = now_s();
    while (__rdtsc() - start < ticks)
        ;
    return now_s() - from;
}

CASE(time_stamps,
     "the time stamp counter counts, and the clocks that the vDSO makes of it have the same rate as before") {
    double before = duration_of(20000000), best = 1e9;
    freeze_here();
    // Other processes may use the processor for a while.
    for (int attempt = 0; attempt < 50 && best >= before * 1.02; attempt++) {
        double now = duration_of(20000000);
        best = now < best ? now : best;
    }
    CHECK(best < before * 1.02 && best > 0);
}

static void read_clock(struct worker *worker) {
    struct timespec now;
    sigset_t all;
    sigfillset(&all);
    if (worker->index) // some threads block all signals
        CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, &all, NULL), 0);
    while (!worker->stop) {
        for (int i = 0; i < 100; i++)
            clock_gettime(CLOCK_MONOTONIC, &now);
        worker->rounds++;
    }
    CHECK_EQUAL(pthread_sigmask(SIG_BLOCK, NULL, &all), 0);
    CHECK_EQUAL(sigismember(&all, SIGTRAP), worker->index);
    CHECK_EQUAL(sigismember(&all, SIGUSR1), worker->index);
}

CASE(inside_vdso, "threads that are nearly always inside the vDSO have left it when they are frozen, and continue") {
    static struct worker workers[4];
    struct sigaction trap = {.sa_handler = SIG_IGN}, later;
    CHECK_EQUAL(sigaction(SIGTRAP, &trap, NULL), 0);
    for (int i = 0; i < 4; i++) {
        workers[i].index = i % 2;
        start_worker(&workers[i], read_clock);
    }
    freeze_here();
    CHECK_EQUAL(sigaction(SIGTRAP, NULL, &later), 0);
    CHECK(later.sa_handler == SIG_IGN);
    for (int i = 0; i < 4; i++)
        check_goes_on(&workers[i]);
    for (int i = 0; i < 4; i++)
        stop_worker(&workers[i]);
}

CASE(same_rights, "a copy has its user, no more capabilities than before and its death signal, and can use its files") {
    static const char *const status = "/proc/self/status", *const capabilities = "\nCapPrm:\t";
    int file = make_file("mine", 1, 1), signal = 0;
    struct stat about;
    long before = status_number(status, capabilities, 16);
    freeze_here();
    CHECK_EQUAL(status_number(status, capabilities, 16) & ~before, 0);
    CHECK_EQUAL(prctl(PR_GET_PDEATHSIG, &signal), 0);
    CHECK_EQUAL(signal, SIGKILL);
    CHECK_EQUAL(fstat(file, &about), 0);
    CHECK_EQUAL(about.st_uid, geteuid());
    CHECK_EQUAL(fchmod(file, 0640), 0);
    // Another copy may be opening "mine" at this moment, so that only a name of this copy's own is changed.
    char own[32], renamed[32];
    snprintf(own, sizeof own, "mine-%d", getpid());
    snprintf(renamed, sizeof renamed, "renamed-%d", getpid());
    CHECK_EQUAL(link("mine", own), 0);
    CHECK_EQUAL(rename(own, renamed), 0);
    CHECK_EQUAL(unlink(renamed), 0);
}

CASE(forked_disk, "a fork of a copy mounts a temporary folder of its own, and has the copy's clocks") {
    char at[512], own[512];
    CHECK(getcwd(at, sizeof at - 8) && getcwd(own, sizeof own - 8));
    strcat(at, "/at");
    strcat(own, "/own-of-fork");
    CHECK(mkdir(at, 0700) == 0 || errno == EEXIST);
    CHECK(mkdir(own, 0700) == 0 || errno == EEXIST);
    read_clocks();
    freeze_here();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int result = thawd_disk(at, own, NULL, NULL, &report);
        if (result == FREEZE_REFUSED && strstr(report.text, "mount namespace"))
            _exit(0); // this user may have none
        CHECK_EQUAL(result, FREEZE_FROZEN);
        check_clocks();
        CHECK_EQUAL(creat("at/mine", 0600) >= 0, 1);
        _exit(0);
    }
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
