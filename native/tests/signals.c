// Runs in the process that is frozen. Tests signal actions, masks and stacks.

#include "harness.h"

#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <ucontext.h>

static _Atomic int calls;
static _Atomic int last_value;
static _Atomic int sender;

static void count_call(int number) {
    (void)number;
    calls++;
}

static void note_details(int number, siginfo_t *info, void *context) {
    (void)context;
    CHECK_EQUAL(number, SIGRTMIN + 2);
    last_value = info->si_value.sival_int;
    sender = info->si_pid;
    calls++;
}

CASE(actions, "handlers, their flags and masks, and ignored and default signals are unchanged") {
    struct sigaction details = {.sa_sigaction = note_details, .sa_flags = SA_SIGINFO | SA_NODEFER}, got;
    sigaddset(&details.sa_mask, SIGTERM);
    CHECK_EQUAL(sigaction(SIGRTMIN + 2, &details, NULL), 0);
    struct sigaction once = {.sa_handler = count_call, .sa_flags = SA_RESETHAND};
    CHECK_EQUAL(sigaction(SIGUSR2, &once, NULL), 0);
    signal(SIGPIPE, SIG_IGN);
    freeze_here();
    CHECK_EQUAL(sigaction(SIGRTMIN + 2, NULL, &got), 0);
    CHECK(got.sa_sigaction == note_details);
    CHECK_EQUAL(got.sa_flags & ~0x04000000, SA_SIGINFO | SA_NODEFER);
    CHECK(sigismember(&got.sa_mask, SIGTERM) && !sigismember(&got.sa_mask, SIGHUP));
    CHECK_EQUAL(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 4711}), 0);
    CHECK_EQUAL(last_value, 4711);
    CHECK_EQUAL(sender, getpid());
    CHECK_EQUAL(raise(SIGUSR2), 0);
    CHECK_EQUAL(calls, 2);
    CHECK_EQUAL(sigaction(SIGUSR2, NULL, &got), 0);
    CHECK(got.sa_handler == SIG_DFL);
    CHECK_EQUAL(sigaction(SIGTERM, NULL, &got), 0);
    CHECK(got.sa_handler == SIG_DFL);
    CHECK_EQUAL(sigaction(SIGPIPE, NULL, &got), 0);
    CHECK(got.sa_handler == SIG_IGN);
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    close(ends[0]);
    CHECK_EQUAL(write(ends[1], "x", 1), -1);
    CHECK_EQUAL(errno, EPIPE);
}

CASE(all_actions, "the actions of all 64 signals are unchanged after the freeze, including those of the C library") {
    struct {
        uint64_t handler, flags, restorer, mask;
    } before[65] = {0}, after[65] = {0};
    signal(SIGINT, count_call);
    setgid(getgid());
    for (int number = 1; number <= 64; number++)
        CHECK_EQUAL(syscall(SYS_rt_sigaction, number, NULL, &before[number], 8), 0);
    freeze_here();
    for (int number = 1; number <= 64; number++)
        CHECK_EQUAL(syscall(SYS_rt_sigaction, number, NULL, &after[number], 8), 0);
    CHECK_EQUAL(memcmp(before, after, sizeof before), 0);
}

static sigset_t mask_of(int first, int second) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, first);
    sigaddset(&set, second);
    return set;
}

static bool blocks_only(int first, int second) {
    sigset_t now;
    CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &now), 0);
    for (int number = 1; number <= 64; number++)
        if (sigismember(&now, number) == 1 && number != first && number != second)
            return false;
    return sigismember(&now, first) && sigismember(&now, second);
}

static void keep_mask(struct worker *worker) {
    int second = SIGRTMIN + (int)worker->index;
    sigset_t mask = mask_of(SIGHUP, second);
    CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
    worker->rounds = 1;
    while (!worker->stop)
        rest();
    CHECK(blocks_only(SIGHUP, second));
}

CASE(masks, "each thread keeps its own mask") {
    struct worker workers[3] = {{.index = 1}, {.index = 2}, {.index = 3}};
    sigset_t mask = mask_of(SIGTERM, SIGRTMAX);
    CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
    for (int i = 0; i < 3; i++) {
        start_worker(&workers[i], keep_mask);
        WAIT_UNTIL(workers[i].rounds == 1);
    }
    freeze_here();
    CHECK(blocks_only(SIGTERM, SIGRTMAX));
    for (int i = 0; i < 3; i++)
        stop_worker(&workers[i]);
}

static void keep_all_blocked(struct worker *worker) {
    sigset_t all;
    sigfillset(&all);
    CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, &all, NULL), 0);
    count_rounds(worker);
    CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &all), 0);
    for (int number = 1; number <= 64; number++)
        if (number != SIGKILL && number != SIGSTOP && number != 32 && number != 33)
            CHECK(sigismember(&all, number));
}

CASE(all_blocked, "a thread that blocks all signals that it can block is frozen, too") {
    struct worker worker = {0};
    start_worker(&worker, keep_all_blocked);
    check_goes_on(&worker);
    freeze_here();
    check_goes_on(&worker);
    stop_worker(&worker);
}

static char *alternate;
static char *_Atomic handler_stack;
static bool freezes_in_handler;
#define ALTERNATE_BYTES (16 * PAGE)

static void use_alternate(void) {
    alternate = map_anonymous(16);
    stack_t stack = {.ss_sp = alternate, .ss_size = ALTERNATE_BYTES};
    CHECK_EQUAL(sigaltstack(&stack, NULL), 0);
}

static bool on_alternate(const char *address) {
    return address >= alternate && address < alternate + ALTERNATE_BYTES;
}

static void note_stack(int number) {
    char here;
    (void)number;
    if (freezes_in_handler)
        freeze_here();
    handler_stack = &here;
    calls++;
}

CASE(alternate_stack, "the alternate stack is still set, and handlers with SA_ONSTACK run on it") {
    use_alternate();
    struct sigaction action = {.sa_handler = note_stack, .sa_flags = SA_ONSTACK}, plain = {.sa_handler = note_stack};
    CHECK_EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
    CHECK_EQUAL(sigaction(SIGUSR2, &plain, NULL), 0);
    freeze_here();
    stack_t stack;
    CHECK_EQUAL(sigaltstack(NULL, &stack), 0);
    CHECK(stack.ss_sp == alternate);
    CHECK_EQUAL(stack.ss_size, ALTERNATE_BYTES);
    CHECK_EQUAL(stack.ss_flags, 0);
    raise(SIGUSR1);
    CHECK(on_alternate(handler_stack));
    raise(SIGUSR2);
    CHECK(!on_alternate(handler_stack));
}

CASE(freeze_on_alternate_stack, "a handler that runs on the alternate stack may freeze, and returns in the copy") {
    use_alternate();
    struct sigaction action = {.sa_handler = note_stack, .sa_flags = SA_ONSTACK};
    sigaddset(&action.sa_mask, SIGTERM);
    CHECK_EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
    freezes_in_handler = true;
    raise(SIGUSR1);
    CHECK(on_alternate(handler_stack));
    CHECK_EQUAL(calls, 1);
    sigset_t now;
    CHECK_EQUAL(sigprocmask(SIG_SETMASK, NULL, &now), 0);
    CHECK(!sigismember(&now, SIGTERM) && !sigismember(&now, SIGUSR1));
    stack_t stack;
    CHECK_EQUAL(sigaltstack(NULL, &stack), 0);
    CHECK(stack.ss_sp == alternate && stack.ss_flags == 0);
    freezes_in_handler = false;
    raise(SIGUSR1);
    CHECK(on_alternate(handler_stack));
}

static _Atomic bool in_handler;
static _Atomic bool leave_handler;

static void stay_in_handler(int number) {
    char here;
    (void)number;
    CHECK(on_alternate(&here));
    in_handler = true;
    while (!leave_handler)
        ;
    CHECK(on_alternate(&here));
    calls++;
}

static void run_on_alternate(struct worker *worker) {
    use_alternate();
    CHECK_EQUAL(raise(SIGUSR1), 0);
    stack_t stack;
    CHECK_EQUAL(sigaltstack(NULL, &stack), 0);
    CHECK(stack.ss_sp == alternate && stack.ss_flags == 0);
    worker->rounds = 1;
}

CASE(frozen_on_alternate_stack,
     "a thread that is frozen while it runs a handler on its alternate stack continues there") {
    struct sigaction action = {.sa_handler = stay_in_handler, .sa_flags = SA_ONSTACK};
    CHECK_EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
    struct worker worker = {0};
    start_worker(&worker, run_on_alternate);
    WAIT_UNTIL(in_handler);
    freeze_here();
    leave_handler = true;
    join_worker(&worker);
    CHECK(worker.rounds == 1 && calls == 1);
}

static sigjmp_buf before_fault;

static void jump_back(int number, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    CHECK_EQUAL(number, SIGSEGV);
    CHECK(info->si_addr == (void *)0x10);
    CHECK(at->uc_mcontext.gregs[REG_RIP] != 0);
    siglongjmp(before_fault, 5);
}

CASE(faults, "a fault in the copy reaches its handler, and the handler can leave with siglongjmp") {
    struct sigaction action = {.sa_sigaction = jump_back, .sa_flags = SA_SIGINFO};
    CHECK_EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
    freeze_here();
    volatile int rounds = 0;
    int number = sigsetjmp(before_fault, 1);
    if (number == 0 || rounds++ < 2)
        *(volatile int *)0x10 = 1; // NOLINT: on purpose
    CHECK(number == 5 && rounds == 3);
}

CASE(child_signals, "the handler of SIGCHLD runs when a child of the copy ends") {
    struct sigaction action = {.sa_handler = count_call, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
    CHECK_EQUAL(sigaction(SIGCHLD, &action, NULL), 0);
    freeze_here();
    pid_t child = fork();
    if (child == 0)
        _exit(3);
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    WAIT_UNTIL(calls == 1);
}

static uint64_t vdso;
static _Atomic int has_interrupted, may_return;

static void interrupt(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    uint64_t at = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    has_interrupted = at >= vdso && at < vdso + 2 * PAGE;
    calls++;
    if (has_interrupted)
        WAIT_UNTIL(may_return);
}

static void read_clock(struct worker *worker) {
    struct timespec now;
    while (!worker->stop) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        worker->rounds++;
    }
}

CASE(handler_inside_vdso,
     "a signal handler that has interrupted the vDSO returns to it in a copy, if the vDSO is the same") {
    static struct worker worker;
    struct sigaction action = {.sa_sigaction = interrupt, .sa_flags = SA_SIGINFO};
    vdso = getauxval(AT_SYSINFO_EHDR);
    CHECK_EQUAL(sigaction(SIGUSR2, &action, NULL), 0);
    start_worker(&worker, read_clock);
    for (int sent = 1; !has_interrupted; sent++) {
        CHECK_EQUAL(pthread_kill(worker.thread, SIGUSR2), 0);
        WAIT_UNTIL(calls == sent);
    }
    freeze_here();
    may_return = 1;
    check_goes_on(&worker);
    stop_worker(&worker);
}
