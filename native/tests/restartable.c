// Runs in the process that is frozen. Tests restartable sequences (rseq). The C library registers an area of each
// thread's memory for them with the kernel. The kernel writes the number of the processor on which the thread runs into
// that area.

#include "harness.h"

#include <sched.h>
#include <sys/rseq.h>

static volatile struct rseq *own_area(void) {
    return (volatile struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

// Checks that the kernel uses this thread's area: the number there changes when the thread moves to another processor.
static void check_area(void) {
    cpu_set_t allowed, one;
    CHECK(__rseq_size > 0);
    CHECK_EQUAL(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK_EQUAL(sched_setaffinity(0, sizeof one, &one), 0);
        CHECK_EQUAL(own_area()->cpu_id, cpu);
        CHECK_EQUAL(own_area()->cpu_id_start, cpu);
        CHECK_EQUAL(sched_getcpu(), cpu);
    }
    CHECK_EQUAL(sched_setaffinity(0, sizeof allowed, &allowed), 0);
    long again = syscall(SYS_rseq, own_area(), 32, 0, RSEQ_SIG);
    CHECK_EQUAL(again, -1);
    CHECK(errno == EBUSY || errno == EINVAL); // registered already
}

static void check_when_told(struct worker *worker) {
    while (!worker->stop)
        rest();
    check_area();
}

CASE(registered, "the areas of old and new threads are registered with the kernel, and show the right processor") {
    struct worker old = {0}, late = {.stop = true};
    start_worker(&old, check_when_told);
    check_area();
    freeze_here();
    check_area();
    stop_worker(&old);
    start_worker(&late, check_when_told);
    join_worker(&late);
}

static _Atomic long counters[64];

static void count_on_processor(struct worker *worker) {
    while (!worker->stop) {
        int cpu = sched_getcpu();
        CHECK(cpu >= 0 && cpu < 64);
        counters[cpu]++;
        worker->rounds++;
    }
}

CASE(counting, "threads that read their processor's number all the time are frozen and continue") {
    struct worker workers[4] = {0};
    for (int i = 0; i < 4; i++)
        start_worker(&workers[i], count_on_processor);
    freeze_here();
    long sum = 0, rounds = 0;
    for (int i = 0; i < 4; i++) {
        check_goes_on(&workers[i]);
        stop_worker(&workers[i]);
        rounds += workers[i].rounds;
    }
    for (int i = 0; i < 64; i++)
        sum += counters[i];
    CHECK_EQUAL(sum, rounds);
}
