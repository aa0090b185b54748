// Runs in the process that is frozen. Stacks: main's, which grew as it was needed before the freeze, and those of
// threads.

#include "harness.h"

#include <setjmp.h>
#include <sys/resource.h>

static sigjmp_buf before_fault;

static void jump_back(int number) {
    siglongjmp(before_fault, number);
}

static void catch_overflow(void) {
    static char alternate[64 * 1024];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK_EQUAL(sigaltstack(&stack, NULL), 0);
    struct sigaction action = {.sa_handler = jump_back, .sa_flags = SA_ONSTACK};
    CHECK_EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
    CHECK_EQUAL(sigaction(SIGBUS, &action, NULL), 0);
}

// Uses `bytes` of stack and returns a number that depends on all of it.
__attribute__((noinline)) static uint64_t descend(size_t bytes) {
    volatile char frame[8192];
    fill((void *)frame, sizeof frame, bytes);
    uint64_t below = bytes > sizeof frame + 128 ? descend(bytes - sizeof frame - 128) : 0;
    CHECK(filled((const void *)frame, sizeof frame, bytes));
    return below + frame[17];
}

// Returns only by a fault.
__attribute__((noinline)) static int fall(volatile int depth) {
    volatile char frame[4096];
    frame[0] = (char)depth;
    if (depth < 0)
        return 0;
    return fall(depth + 1) + frame[0];
}

CASE(main_deep, "main's stack grows to 7 MiB in the copy, as before the freeze") {
    uint64_t shallow = descend(PAGE);
    freeze_here();
    CHECK(descend(7 * MIB) != 0);
    CHECK(descend(PAGE) == shallow);
}

CASE(main_was_deep, "a stack that was deep at the freeze and is not used now can be used again") {
    descend(5 * MIB);
    freeze_here();
    CHECK(descend(6 * MIB) != 0);
}

__attribute__((noinline)) static void freeze_deep(size_t bytes) {
    volatile char frame[65536];
    fill((void *)frame, sizeof frame, bytes);
    if (bytes > sizeof frame)
        freeze_deep(bytes - sizeof frame);
    else
        freeze_here();
    CHECK(filled((const void *)frame, sizeof frame, bytes));
}

CASE(freeze_in_depth, "a freeze at the end of 6 MiB of stack returns through all of it") {
    freeze_deep(6 * MIB);
}

CASE(main_overflow, "main's stack has an end: to run over it is a fault, not another's memory") {
    struct rlimit limit;
    CHECK_EQUAL(getrlimit(RLIMIT_STACK, &limit), 0);
    freeze_here();
    catch_overflow();
    if (limit.rlim_cur == RLIM_INFINITY)
        return; // it has none
    int number = sigsetjmp(before_fault, 1);
    if (number == 0)
        fall(0);
    CHECK(number == SIGSEGV);
    CHECK(descend(MIB) != 0);
}

static void descend_when_told(struct worker *worker) {
    CHECK(descend((size_t)worker->index / 4) != 0);
    while (!worker->stop)
        rest();
    CHECK(descend((size_t)worker->index) != 0);
}

CASE(large_thread_stack, "a thread with a stack of 64 MiB uses it in the copy") {
    pthread_attr_t attributes;
    CHECK_EQUAL(pthread_attr_init(&attributes), 0);
    CHECK_EQUAL(pthread_attr_setstacksize(&attributes, 64 * MIB), 0);
    struct worker worker = {.run = descend_when_told, .index = 60 * MIB};
    CHECK_EQUAL(pthread_create(&worker.thread, &attributes, worker_main, &worker), 0);
    WAIT_UNTIL(worker.tid);
    freeze_here();
    stop_worker(&worker);
}

static void overflow_when_told(struct worker *worker) {
    while (!worker->stop)
        rest();
    catch_overflow();
    int number = sigsetjmp(before_fault, 1);
    if (number == 0)
        fall(0);
    worker->rounds = number;
}

CASE(thread_overflow, "the guard page below a thread's stack is still there") {
    struct worker worker = {0};
    start_worker(&worker, overflow_when_told);
    freeze_here();
    stop_worker(&worker);
    CHECK_EQUAL(worker.rounds, SIGSEGV);
}

CASE(known_to_libc, "the C library still finds main's stack and a thread's") {
    struct worker worker = {0};
    start_worker(&worker, descend_when_told);
    freeze_here();
    pthread_attr_t attributes;
    char *start = NULL, here;
    size_t bytes = 0;
    CHECK_EQUAL(pthread_getattr_np(pthread_self(), &attributes), 0);
    CHECK_EQUAL(pthread_attr_getstack(&attributes, (void **)&start, &bytes), 0);
    CHECK(&here >= start && &here < start + bytes);
    CHECK(bytes >= MIB);
    pthread_attr_destroy(&attributes);
    CHECK_EQUAL(pthread_getattr_np(worker.thread, &attributes), 0);
    CHECK_EQUAL(pthread_attr_getstack(&attributes, (void **)&start, &bytes), 0);
    CHECK((char *)worker.thread >= start && (char *)worker.thread < start + bytes);
    pthread_attr_destroy(&attributes);
    stop_worker(&worker);
}

static char own_stack[256 * 1024] __attribute__((aligned(4096)));

CASE(stack_of_the_program, "a thread runs on memory that the program set aside for it") {
    pthread_attr_t attributes;
    CHECK_EQUAL(pthread_attr_init(&attributes), 0);
    CHECK_EQUAL(pthread_attr_setstack(&attributes, own_stack, sizeof own_stack), 0);
    struct worker worker = {.run = descend_when_told, .index = 200 * 1024};
    CHECK_EQUAL(pthread_create(&worker.thread, &attributes, worker_main, &worker), 0);
    WAIT_UNTIL(worker.tid);
    freeze_here();
    stop_worker(&worker);
}
