// Runs in the process that is frozen. Stops ("parks") all other threads at a known point: in a signal handler. There
// each thread's registers are in the signal frame on its own stack, and rt_sigreturn continues the thread from that
// frame, in the original and in a copy.
//
// The signal is 33, glibc's SIGSETXID: besides 32 it is the only signal that a program cannot block through glibc. The
// handler is installed by the raw system call, because glibc's sigaction() refuses this signal. All signals are blocked
// while the handler runs.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include "freeze_parts.h"
#include "leave_vdso.h"
#include "sys.h"

#define PARK_SIGNAL 33
#define MAX_THREADS 32768
#define RESTORER_FLAG 0x04000000 // SA_RESTORER
#define LEAVE_NS 500000000       // how long to wait for threads to leave the vDSO
#define RETRY_NS 20000000        // waiting time after which threads are listed and signalled again

struct slot {
    struct thread_state state;
    uint64_t instruction; // where the thread was stopped
};

// State that the handlers of all threads share. It is in scratch memory, so that the image does not contain it.
struct parking {
    uint32_t parked; // number of threads that have stopped and filled a slot
    uint32_t open;   // futex: 1 when all threads may continue
    uint32_t woken;  // number of threads that no longer wait in their handler
    uint32_t count;  // number of claimed slots
    uint32_t signalled_count;
    int32_t signalled[MAX_THREADS]; // ids of the threads that were signalled; none may get the signal twice
    struct slot slots[MAX_THREADS];
    struct leaving leaving;
};

static struct parking *parking;
static struct freezing *writing;
static int (*write_image)(struct freezing *);
static int write_result;
static struct signal_action replaced;
static int unparked; // 1: a signalled thread may not have reached the handler, or may be leaving the vDSO

// Weak symbols, because glibc before 2.35 does not have them. Source: tls.h and rseq.h of glibc.
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

__asm__(".text\n"
        ".globl thawd_restorer\n"
        ".hidden thawd_restorer\n"
        ".type thawd_restorer, @function\n"
        "thawd_restorer:\n"
        "mov $15, %eax\n"
        "syscall\n"
        ".size thawd_restorer, .-thawd_restorer\n");
extern void thawd_restorer(void) __attribute__((visibility("hidden")));

static void note_thread(struct slot *slot, ucontext_t *context) {
    struct thread_state *state = &slot->state;
    uint64_t robust_bytes = 0, tid_address = 0;
    state->context = (uint64_t)context;
    sys3(SYS_arch_prctl, ARCH_GET_FS_CODE, (long)&state->fs_base, 0);
    sys3(SYS_arch_prctl, ARCH_GET_GS_CODE, (long)&state->gs_base, 0);
    if (sys_prctl(PR_GET_TID_ADDRESS, (long)&tid_address, 0, 0, 0) == 0)
        state->clear_child_tid = tid_address;
    sys3(SYS_get_robust_list, 0, (long)&state->robust_list, (long)&robust_bytes);
    if (&__rseq_size && __rseq_size)
        state->rseq = state->fs_base + (uint64_t)__rseq_offset;
    sys_prctl(PR_GET_NAME, (long)state->name, 0, 0, 0);
    state->policy = (uint32_t)sys3(SYS_sched_getscheduler, 0, 0, 0);
    state->nice = 20 - (int32_t)sys3(SYS_getpriority, 0, 0, 0); // the call returns 20 minus the value
    long priority = sys3(SYS_ioprio_get, 1 /* IOPRIO_WHO_PROCESS */, 0, 0),
         slack = sys_prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    state->io_priority = priority > 0 ? (uint32_t)priority : 0;
    state->cpu_ns = clocks_of_this_thread();
    state->timer_slack_ns = slack > 0 ? (uint64_t)slack : 0;
    slot->instruction = (uint64_t)context->uc_mcontext.gregs[REG_RIP];
    // The id is written last: a slot with a thread id is complete.
    __atomic_store_n(&state->tid, sys_gettid(), __ATOMIC_RELEASE);
}

// If freeze has not sent signal 33, passes it on to glibc's handler; glibc uses it for setuid and similar calls.
static void pass_on(int signal, siginfo_t *info, void *context) {
    if (replaced.handler > (uint64_t)SIG_IGN)
        ((void (*)(int, siginfo_t *, void *))replaced.handler)(signal, info, context);
}

// Called in a signal handler with all signals blocked: waits until the freeze is over.
static void stop(void *context) {
    struct parking *here = __atomic_load_n(&parking, __ATOMIC_ACQUIRE);
    if (!here)
        return;
    uint32_t index = __atomic_fetch_add(&here->count, 1, __ATOMIC_ACQ_REL);
    if (index >= MAX_THREADS)
        return;
    note_thread(&here->slots[index], context);
    __atomic_fetch_add(&here->parked, 1, __ATOMIC_ACQ_REL);
    if (writing && here->slots[index].state.tid == writing->writer_tid) {
        write_result = write_image(writing);
        return;
    }
    sys_futex(&here->parked, FUTEX_WAKE, INT_MAX, 0);
    while (!__atomic_load_n(&here->open, __ATOMIC_ACQUIRE))
        sys_futex(&here->open, FUTEX_WAIT, 0, 0);
    __atomic_fetch_add(&here->woken, 1, __ATOMIC_ACQ_REL);
}

static void on_park(int signal, siginfo_t *info, void *context) {
    if (info->si_code != SI_QUEUE || info->si_ptr != (void *)&parking) {
        pass_on(signal, info, context);
        return;
    }
    struct parking *here = __atomic_load_n(&parking, __ATOMIC_ACQUIRE);
    if (here && !leave_vdso(&here->leaving, context))
        stop(context);
}

// Sends signal 33 with a value that identifies it as freeze's. A signal that arrives late, when glibc's handler is
// installed again, does no harm: glibc's handler ignores signals that were not sent by tgkill.
static long send_signal(struct freezing *f, int tid) {
    siginfo_t info = {.si_signo = PARK_SIGNAL, .si_code = SI_QUEUE};
    info.si_pid = f->pid;
    info.si_ptr = (void *)&parking;
    return sys6(SYS_rt_tgsigqueueinfo, f->pid, tid, PARK_SIGNAL, (long)&info, 0, 0);
}

static int is_signalled(int tid) {
    for (uint32_t i = 0; i < parking->signalled_count; i++)
        if (parking->signalled[i] == tid)
            return 1;
    return 0;
}

static int is_parked(int tid) {
    uint32_t count = __atomic_load_n(&parking->count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count && i < MAX_THREADS; i++)
        if (__atomic_load_n(&parking->slots[i].state.tid, __ATOMIC_ACQUIRE) == tid)
            return 1;
    return 0;
}

// Signals every thread that was not signalled yet. Returns the number of threads that are not parked yet, or -errno.
// Sets `*missing` to the last thread that is not parked.
static long signal_others(struct freezing *f, int *missing) {
    int fd = sys_open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    char buffer[4096];
    long bytes, others = 0;
    while ((bytes = sys3(SYS_getdents64, fd, (long)buffer, sizeof buffer)) > 0)
        for (long at = 0; at < bytes;) {
            const char *name = buffer + at + 19; // struct linux_dirent64: d_name after d_ino, d_off, d_reclen, d_type
            at += *(uint16_t *)(buffer + at + 16);
            int tid = (int)take_number(&name, 10);
            if (!tid || tid == f->writer_tid || is_parked(tid))
                continue;
            int known = is_signalled(tid);
            if ((known ? sys3(SYS_tgkill, f->pid, tid, 0) : send_signal(f, tid)) < 0)
                continue; // the thread has ended since
            if (!known && parking->signalled_count < MAX_THREADS)
                parking->signalled[parking->signalled_count++] = tid;
            others++;
            *missing = tid;
        }
    sys_close(fd);
    return bytes < 0 ? bytes : others;
}

static int unparkable(struct freezing *f, int tid) {
    char path[64], name[32] = "", detail[64];
    struct writer out = text_writer(path, sizeof path);
    put_text(&out, "/proc/self/task/");
    put_number(&out, (unsigned)tid, 10);
    put_text(&out, "/comm");
    long bytes = read_text_file(path, name, sizeof name);
    unparked = 1;
    if (bytes > 0)
        name[bytes - 1] = 0;
    out = text_writer(detail, sizeof detail);
    put_number(&out, (unsigned)tid, 10);
    put_text(&out, " (");
    put_text(&out, name);
    put_text(&out, ")");
    return refuse(
        f, "park",
        "a thread cannot be stopped; it blocks signal 33, is being traced, or waits in the kernel. Start it after "
        "the freeze instead. Thread ",
        detail);
}

static int install(void) {
    struct signal_action action = {
        .handler = (uint64_t)on_park,
        .flags = SA_SIGINFO | SA_RESTART | RESTORER_FLAG,
        .restorer = (uint64_t)thawd_restorer,
        .mask = ~UINT64_C(0),
    };
    struct signal_action before;
    int result = (int)sys6(SYS_rt_sigaction, PARK_SIGNAL, (long)&action, (long)&before, 8, 0, 0);
    if (before.handler != (uint64_t)on_park) // the handler of an earlier freeze may have stayed for a late thread
        replaced = before;
    return result;
}

int park_all(struct freezing *f) {
    parking = (struct parking *)f->scratch; // its pages are zero
    unparked = 0;
    int result = install();
    if (!result)
        result = leave_begin(&parking->leaving, f->vdso_start, f->vdso_end, stop);
    if (result < 0)
        return fail(f, "park", result, "signal 33 or SIGTRAP cannot be handled");
    uint64_t timeout_ns = (f->request->park_timeout_ms ? f->request->park_timeout_ms : 2000) * UINT64_C(1000000);
    uint64_t started_ns = monotonic_ns(), until_ns = started_ns + timeout_ns;
    uint64_t leave_ns = timeout_ns / 2 < LEAVE_NS ? timeout_ns / 2 : LEAVE_NS;
    int quiet = 0, missing = 0;
    // Threads may start other threads meanwhile, so two listings in a row must show that all threads are parked.
    while (quiet < 2) {
        long others = signal_others(f, &missing);
        uint32_t count = __atomic_load_n(&parking->count, __ATOMIC_ACQUIRE);
        unparked = others < 0 || count >= MAX_THREADS;
        if (others < 0)
            return fail(f, "park", others, "the threads cannot be listed in /proc/self/task");
        if (unparked)
            return refuse(f, "park", "there are more threads than an image can hold, 32768; end some before the freeze",
                          "");
        quiet = others ? 0 : quiet + 1;
        uint64_t again_ns = monotonic_ns() + RETRY_NS;
        while (others && signal_others(f, &missing) > 0 && monotonic_ns() < again_ns) {
            const struct timespec wait = {0, 200000};
            sys_futex(&parking->parked, FUTEX_WAIT, parking->parked, &wait);
        }
        if (monotonic_ns() > started_ns + leave_ns)
            leave_no_more(&parking->leaving);
        if (others && monotonic_ns() > until_ns)
            return unparkable(f, missing);
    }
    return fault_point(f, "park");
}

// Waits until no thread uses the scratch memory any more.
static void await_leaving(struct parking *here, uint32_t writers) {
    const struct timespec wait = {0, 100000};
    while (__atomic_load_n(&here->woken, __ATOMIC_ACQUIRE) + writers < __atomic_load_n(&here->count, __ATOMIC_ACQUIRE))
        sys_futex(&here->open, FUTEX_WAIT, 1, &wait);
}

int park_release(struct freezing *f) {
    struct parking *here = parking;
    if (!here)
        return 1;
    uint32_t writers = (uint32_t)is_parked(f->writer_tid);
    __atomic_store_n(&parking, 0, __ATOMIC_RELEASE); // if the signal arrives late, the handler returns immediately
    writing = 0;
    // A thread that could not be stopped gets its signal later. Without the handler the signal would kill the process.
    if (!unparked) {
        sys6(SYS_rt_sigaction, PARK_SIGNAL, (long)&replaced, 0, 8, 0, 0);
        leave_end();
    }
    __atomic_store_n(&here->open, 1, __ATOMIC_RELEASE);
    sys_futex(&here->open, FUTEX_WAKE, INT_MAX, 0);
    await_leaving(here, writers);
    return !unparked;
}

void park_replaced_action(int signal, struct signal_action *action) {
    if (signal == PARK_SIGNAL)
        *action = replaced;
    else if (signal == SIGTRAP)
        leave_replaced_action(action);
}

int park_self(struct freezing *f, int (*write)(struct freezing *)) {
    uint64_t blocked = 0;
    sys6(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&blocked, sizeof blocked, 0, 0);
    if (blocked >> (PARK_SIGNAL - 1) & 1)
        return refuse(f, "park", "this thread blocks signal 33; call freeze from another thread", "");
    write_image = write;
    write_result = 1;
    writing = f;
    send_signal(f, f->writer_tid);
    if (__atomic_load_n(&thawd_landing.restored, __ATOMIC_ACQUIRE)) {
        parking = 0; // a copy has neither the scratch memory nor the handler
        writing = 0;
        return 0;
    }
    if (write_result == 1)
        return fail(f, "park", -EIO, "the signal that the freezing thread sent to itself did not arrive");
    return write_result;
}

int park_describe(struct freezing *f) {
    struct table *threads = &f->sections[SECTION_THREADS];
    uint32_t count = __atomic_load_n(&parking->count, __ATOMIC_ACQUIRE);
    for (int leader = 1; leader >= 0; leader--)
        for (uint32_t i = 0; i < count; i++) {
            struct thread_state *state = &parking->slots[i].state;
            if (!state->tid || (state->tid == f->pid) != leader)
                continue;
            struct thread_state *to = table_add(threads);
            if (!to)
                return refuse(f, "threads", "there are more threads than an image can hold; end some before the freeze",
                              "");
            if (!state->clear_child_tid)
                return refuse(f, "threads",
                              "the kernel does not report where a thread's id is stored (it lacks "
                              "CONFIG_CHECKPOINT_RESTORE)",
                              "");
            *to = *state;
        }
    if (!threads->count || AT(*threads, struct thread_state, 0)->tid != f->pid)
        return refuse(f, "threads", "the main thread has ended; keep it running until after the freeze", "");
    return fault_point(f, "threads");
}

int park_is_inside(uint64_t start, uint64_t end) {
    for (uint32_t i = 0; i < parking->count; i++)
        if (parking->slots[i].instruction >= start && parking->slots[i].instruction < end)
            return 1;
    return 0;
}

int park_has_interrupted(struct freezing *f, uint64_t start, uint64_t end) {
    for (uint32_t i = 0; i < parking->count; i++)
        for (uint32_t k = 0; k < f->mappings.count; k++) {
            const struct mapping *stack = AT(f->mappings, struct mapping, k);
            uint64_t context = parking->slots[i].state.context;
            if (context >= stack->start && context < stack->end &&
                leave_is_interrupted(context, stack->end, start, end))
                return 1;
        }
    return 0;
}

// Whether a parked thread was interrupted in a system call that waits for `fd`. The call's arguments are still in the
// thread's registers. This is a guess, good enough for an error message: which call it was, is not known.
static int waits_for(struct freezing *f, const ucontext_t *context, int fd) {
    const greg_t *registers = context->uc_mcontext.gregs;
    uint64_t first = (uint64_t)registers[REG_RDI], second = (uint64_t)registers[REG_RSI];
    if (first == (uint64_t)fd)
        return 1; // accept, recv and other calls whose first argument is the descriptor
    const struct table *watches = &f->sections[SECTION_EPOLL]; // for epoll_wait
    for (uint32_t i = 0; i < watches->count; i++) {
        const struct epoll_watch *watch = AT(*watches, struct epoll_watch, i);
        if (watch->number == fd && first == (uint64_t)watch->epoll)
            return 1;
    }
    // poll. The thread's memory is read through /proc/self/mem, where an invalid pointer causes an error, not a signal.
    struct pollfd polled[8];
    long got = second <= 4096 ? sys_pread(f->memory_fd, polled, sizeof polled, first) : 0;
    for (long i = 0; i < (long)second && (i + 1) * (long)sizeof *polled <= got; i++)
        if (polled[i].fd == fd && polled[i].events)
            return 1;
    uint64_t word = 0; // for select: 64 bits of its set of descriptors
    return first > (uint64_t)fd && first <= 65536 &&
           sys_pread(f->memory_fd, &word, sizeof word, second + (uint64_t)fd / 64 * 8) == sizeof word &&
           word >> (fd % 64) & 1;
}

int park_who_waits(struct freezing *f, int fd, char *to, uint64_t bytes) {
    for (uint32_t i = 0; i < parking->count; i++) {
        const struct thread_state *state = &parking->slots[i].state;
        if (!state->tid || state->tid == f->writer_tid || !waits_for(f, (const ucontext_t *)state->context, fd))
            continue;
        struct writer out = text_writer(to, bytes);
        put_number(&out, (unsigned)state->tid, 10);
        put_text(&out, " (");
        put_text(&out, state->name);
        put_text(&out, ")");
        return 1;
    }
    return 0;
}
