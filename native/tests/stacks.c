// Runs in the process that is frozen. Tests the main thread's stack, which can grow, and the stacks of other threads.

#include "harness.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/wait.h>

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

// Uses `bytes` bytes of stack and returns a number that depends on all of them.
__attribute__((noinline)) static uint64_t descend(size_t bytes) {
    volatile char frame[8192];
    fill((void *)frame, sizeof frame, bytes);
    uint64_t below = bytes > sizeof frame + 128 ? descend(bytes - sizeof frame - 128) : 0;
    CHECK(filled((const void *)frame, sizeof frame, bytes));
    return below + frame[17];
}

// Uses up the stack, so that it ends in a fault.
__attribute__((noinline)) static int fall(volatile int depth) {
    volatile char frame[4096];
    frame[0] = (char)depth;
    if (depth < 0)
        return 0;
    return fall(depth + 1) + frame[0];
}

CASE(main_deep, "the main thread's stack grows to 7 MiB in the copy, as before the freeze") {
    uint64_t shallow = descend(PAGE);
    freeze_here();
    CHECK(descend(7 * MIB) != 0);
    CHECK(descend(PAGE) == shallow);
}

CASE(main_was_deep, "the part of a stack that was in use before the freeze can be used again") {
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

CASE(freeze_in_depth, "a copy of a process that was frozen after using 6 MiB of stack returns through all frames") {
    freeze_deep(6 * MIB);
}

CASE(main_overflow, "using the main thread's stack beyond its end is a fault, and does not reach other memory") {
    struct rlimit limit;
    CHECK_EQUAL(getrlimit(RLIMIT_STACK, &limit), 0);
    freeze_here();
    catch_overflow();
    if (limit.rlim_cur == RLIM_INFINITY)
        return; // without a limit, the stack does not overflow
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

// Finds a line of /proc/self/smaps about the mapping at `address`: the one that begins with `name`, or the first one if
// `name` is NULL.
static void mapping_line(const void *address, const char *name, char *line, int bytes) {
    FILE *maps = fopen("/proc/self/smaps", "re");
    CHECK(maps);
    unsigned long start = 0, end = 0;
    bool here = false;
    while (fgets(line, bytes, maps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            here = start <= (uintptr_t)address && (uintptr_t)address < end;
        if (here && (!name || strncmp(line, name, strlen(name)) == 0)) {
            fclose(maps);
            return;
        }
    }
    fail(__FILE__, __LINE__, name ? name : "a mapping", 0, 1);
}

CASE(main_grows_down,
     "the kernel treats the main thread's stack as a stack: it grows down, is named, and has free addresses below it") {
    char line[512];
    freeze_here();
    mapping_line(line, "VmFlags:", line, sizeof line);
    CHECK(strstr(line, " gd"));
    mapping_line(line, NULL, line, sizeof line);
    CHECK(strstr(line, "[stack]"));
    char *blocks[200]; // new memory is not mapped at the addresses below the stack
    for (int i = 0; i < 200; i++)
        memset(blocks[i] = map_anonymous(256), 1, 256 * PAGE);
    CHECK(descend(7 * MIB) != 0);
    for (int i = 0; i < 200; i++)
        CHECK(blocks[i][0] == 1 && blocks[i][256 * PAGE - 1] == 1);
}

CASE(main_ends_at_its_limit, "the main thread's stack can be used up to a few pages before its limit, and not beyond") {
    struct rlimit limit;
    CHECK_EQUAL(getrlimit(RLIMIT_STACK, &limit), 0);
    if (limit.rlim_cur > 64 * MIB)
        not_here("the limit of the stack is too large to be filled");
    freeze_here();
    CHECK(descend(limit.rlim_cur - 256 * 1024) != 0); // the stack also contains the arguments and the environment
    char line[512];
    unsigned long start, end;
    mapping_line(line, NULL, line, sizeof line);
    CHECK_EQUAL(sscanf(line, "%lx-%lx", &start, &end), 2);
    CHECK(end - start <= limit.rlim_cur);
    catch_overflow();
    int number = sigsetjmp(before_fault, 1);
    if (number == 0)
        *(volatile char *)(end - limit.rlim_cur - PAGE) = 1;
    CHECK_EQUAL(number, SIGSEGV);
}

// Executes machine code in a variable on the stack, as libraries do that request an executable stack.
static int run_on_stack(void) {
    volatile unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3}; // mov $42, %eax; ret
    return ((int (*)(void))(uintptr_t)code)();
}

static void run_when_told(struct worker *worker) {
    while (!worker->stop)
        rest();
    worker->rounds = run_on_stack();
}

// The runner builds asks.so into the case's folder.
static bool load_what_asks(void) {
    return dlopen("./asks.so", RTLD_NOW) != NULL && run_on_stack() == 42;
}

CASE(library_asks_for_execution,
     "a library that requests an executable stack can be loaded in the copy, and code on stacks runs") {
    struct worker before = {0}, after = {0};
    int status;
    start_worker(&before, run_when_told);
    pid_t child = fork(); // finds out whether this C library makes stacks executable; glibc from 2.41 on does not
    if (child == 0)
        _exit(load_what_asks() ? 0 : 1);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    if (status)
        not_here("this C library does not make stacks executable");
    freeze_here();
    if (!load_what_asks())
        dprintf(1, "%s\n", dlerror());
    CHECK_EQUAL(run_on_stack(), 42);
    start_worker(&after, run_when_told);
    stop_worker(&before);
    stop_worker(&after);
    CHECK_EQUAL(before.rounds, 42);
    CHECK_EQUAL(after.rounds, 42);
    CHECK(descend(7 * MIB) != 0);
}

CASE(execution_before_the_freeze, "a stack that was made executable before the freeze is executable in the copy") {
    struct worker before = {0}, after = {0};
    start_worker(&before, run_when_told);
    if (!load_what_asks())
        not_here("this C library does not make stacks executable");
    freeze_here();
    CHECK_EQUAL(run_on_stack(), 42);
    start_worker(&after, run_when_told);
    stop_worker(&before);
    stop_worker(&after);
    CHECK_EQUAL(before.rounds, 42);
    CHECK_EQUAL(after.rounds, 42);
    CHECK(descend(7 * MIB) != 0);
}

CASE(main_in_parts, "the main thread's stack, divided by protection, is restored in parts, and grows") {
    descend(3 * MIB);
    char *page = (char *)((uintptr_t)&page / PAGE * PAGE - 2 * MIB);
    CHECK_EQUAL(mprotect(page, PAGE, PROT_READ), 0);
    freeze_here();
    catch_overflow();
    int number = sigsetjmp(before_fault, 1);
    if (number == 0)
        *(volatile char *)page = 1;
    CHECK_EQUAL(number, SIGSEGV);
    char line[512];
    mapping_line(page - PAGE, "VmFlags:", line, sizeof line);
    CHECK(strstr(line, " gd"));
    CHECK_EQUAL(mprotect(page, PAGE, PROT_READ | PROT_WRITE), 0);
    CHECK(descend(7 * MIB) != 0);
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

CASE(known_to_libc, "the C library still finds the stacks of the main thread and of another thread") {
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

CASE(stack_of_the_program, "a thread continues on a stack that the program has allocated") {
    pthread_attr_t attributes;
    CHECK_EQUAL(pthread_attr_init(&attributes), 0);
    CHECK_EQUAL(pthread_attr_setstack(&attributes, own_stack, sizeof own_stack), 0);
    struct worker worker = {.run = descend_when_told, .index = 200 * 1024};
    CHECK_EQUAL(pthread_create(&worker.thread, &attributes, worker_main, &worker), 0);
    WAIT_UNTIL(worker.tid);
    freeze_here();
    stop_worker(&worker);
}
