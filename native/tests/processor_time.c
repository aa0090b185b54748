// Runs in the process that is frozen. Tests clocks of processor time: in a copy they continue from their value at the
// freeze.

#include "harness.h"

#include <sys/resource.h>
#include <sys/times.h>
#include <sys/wait.h>

#define USED_MS 60

static int64_t read_ns(clockid_t clock) {
    struct timespec now;
    CHECK_EQUAL(clock_gettime(clock, &now), 0);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void compute(clockid_t clock) {
    int64_t until = read_ns(clock) + USED_MS * INT64_C(1000000);
    while (read_ns(clock) < until)
        for (volatile int i = 0; i < 10000; i++) {
        }
}

static int64_t user_and_system_us(int who) {
    struct rusage usage;
    CHECK_EQUAL(getrusage(who, &usage), 0);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * INT64_C(1000000) + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
}

// Readings of all clocks of processor time, of this process and of this thread, each in the unit of its clock.
struct readings {
    int64_t values[9];
};

static struct readings take_readings(void) {
    struct tms ticks;
    clockid_t own, of_thread;
    CHECK(times(&ticks) != (clock_t)-1);
    CHECK_EQUAL(clock_getcpuclockid(getpid(), &own), 0);
    CHECK_EQUAL(pthread_getcpuclockid(pthread_self(), &of_thread), 0);
    return (struct readings){{
        read_ns(CLOCK_PROCESS_CPUTIME_ID),
        read_ns(CLOCK_THREAD_CPUTIME_ID),
        read_ns(own),
        read_ns(of_thread),
        clock(),
        user_and_system_us(RUSAGE_SELF),
        user_and_system_us(RUSAGE_THREAD),
        user_and_system_us(RUSAGE_CHILDREN),
        ticks.tms_utime + ticks.tms_stime + ticks.tms_cutime + ticks.tms_cstime,
    }};
}

static void check_later(const struct readings *before, const struct readings *after) {
    for (size_t i = 0; i < sizeof before->values / sizeof *before->values; i++) {
        if (after->values[i] < before->values[i])
            fail(__FILE__, (int)i, "this reading does not run backwards", after->values[i], before->values[i]);
    }
    CHECK(after->values[0] - before->values[0] < 20 * INT64_C(1000000000));
}

static struct readings of_worker;

static void use_time(struct worker *worker) {
    compute(CLOCK_THREAD_CPUTIME_ID);
    of_worker = take_readings();
    worker->rounds = 1;
    while (!worker->stop)
        rest();
    struct readings after = take_readings();
    check_later(&of_worker, &after);
}

static void be_new(struct worker *worker) {
    CHECK(read_ns(CLOCK_THREAD_CPUTIME_ID) < USED_MS * INT64_C(1000000));
    worker->rounds = 1;
}

CASE(goes_on, "no reading of processor time runs backwards, of the process, of threads, of children") {
    struct worker worker = {0}, newcomer = {0};
    pid_t child = fork();
    if (child == 0) {
        compute(CLOCK_PROCESS_CPUTIME_ID);
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, NULL, 0), child);
    start_worker(&worker, use_time);
    compute(CLOCK_THREAD_CPUTIME_ID);
    WAIT_UNTIL(worker.rounds == 1);
    struct readings before = take_readings();
    freeze_here();
    struct readings after = take_readings();
    check_later(&before, &after);
    compute(CLOCK_THREAD_CPUTIME_ID);
    struct readings last = take_readings();
    check_later(&after, &last);
    CHECK(last.values[0] - after.values[0] >= USED_MS * INT64_C(1000000));
    CHECK(last.values[1] - after.values[1] >= USED_MS * INT64_C(1000000));
    start_worker(&newcomer, be_new);
    join_worker(&newcomer);
    CHECK_EQUAL(newcomer.rounds, 1);
    stop_worker(&worker);
}

// The runner passes the path of the second image as the only argument.
CASE(frozen_again, "no reading runs backwards in a copy of a copy") {
    compute(CLOCK_THREAD_CPUTIME_ID);
    struct readings before = take_readings();
    freeze_here();
    struct readings between = take_readings();
    check_later(&before, &between);
    if (!copy || !report.arguments[0])
        return;
    compute(CLOCK_THREAD_CPUTIME_ID);
    between = take_readings();
    int result = freeze_to(strdup(report.arguments[0]), NULL, 0);
    struct readings after = take_readings();
    check_later(&between, &after);
    CHECK(result == FREEZE_FROZEN || result == FREEZE_THAWED);
}

CASE(forked, "no reading runs backwards in a fork of a copy, compared with readings from before the freeze") {
    compute(CLOCK_THREAD_CPUTIME_ID);
    struct readings before = take_readings();
    freeze_here();
    if (!copy)
        return;
    pid_t child = fork();
    if (child == 0) {
        CHECK(read_ns(CLOCK_PROCESS_CPUTIME_ID) >= before.values[0]);
        CHECK(read_ns(CLOCK_THREAD_CPUTIME_ID) >= before.values[1]);
        _exit(0);
    }
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
}

CASE(wrong_clocks, "clock_gettime and getrusage fail with EINVAL for unknown ids, and other clocks are unchanged") {
    struct timespec now;
    freeze_here();
    CHECK_EQUAL(clock_gettime(1234, &now), -1);
    CHECK_EQUAL(errno, EINVAL);
    CHECK_EQUAL(getrusage(1234, (struct rusage *)&now), -1);
    CHECK_EQUAL(errno, EINVAL);
    double start = now_s();
    CHECK_EQUAL(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now), 0);
    double by_call = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    CHECK(start <= by_call && by_call <= now_s());
}
