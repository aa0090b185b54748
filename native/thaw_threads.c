// Runs in thaw's address space, on the stacks of the frozen threads. Makes all threads, then lets them continue.

#include <limits.h>
#include <linux/futex.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/time_types.h>

#include "thaw.h"
#include "thaw_landing.h"

#define RSEQ_SIGNATURE 0x53053053 // glibc's, on x86-64
#define RSEQ_BYTES 32
#define ROBUST_BYTES 24  // sizeof(struct robust_list_head)
#define ROBUST_MOST 2048 // ROBUST_LIST_LIMIT of the kernel
// A new thread first runs on its own stack, this many bytes below its signal frame. Nothing reads that memory later.
#define BELOW_CONTEXT 1024

static uint32_t reading; // number of threads that still read the tables
static uint32_t gate;    // 1: open, the threads may continue

// The initial part of struct rseq, as glibc registers it. Source: include/uapi/linux/rseq.h.
struct rseq_area {
    uint32_t cpu_id_start, cpu_id;
    uint64_t critical_section;
    uint32_t flags;
};

static void set_rseq(const struct thread_state *thread) {
    if (!thread->rseq)
        return;
    struct rseq_area *area = (struct rseq_area *)thread->rseq;
    area->cpu_id_start = 0;
    area->cpu_id = UINT32_MAX; // RSEQ_CPU_ID_UNINITIALIZED
    area->critical_section = 0;
    area->flags = 0;
    sys6(SYS_rseq, (long)area, RSEQ_BYTES, 0, RSEQ_SIGNATURE, 0, 0);
}

// Writes the thread's new id into the robust mutexes that it holds: they name their owner by thread id. This is done
// before any thread runs that might wait for one of them.
// Source: Documentation/locking/robust-futexes.rst.
static void rename_owner(const struct thread_state *thread, uint32_t tid) {
    struct {
        uint64_t next;
        int64_t futex_offset;
        uint64_t pending;
    } *head = (void *)thread->robust_list;
    if (!head)
        return;
    uint64_t at = head->next & ~UINT64_C(1);
    for (int i = 0; at != (uint64_t)head && at && i < ROBUST_MOST; i++) {
        uint32_t *word = (uint32_t *)(at + (uint64_t)head->futex_offset);
        if ((*word & FUTEX_TID_MASK) == (uint32_t)thread->tid)
            *word = (*word & ~(uint32_t)FUTEX_TID_MASK) | tid;
        at = *(uint64_t *)at & ~UINT64_C(1);
    }
}

// Writes a thread's new id into its robust mutexes and into the landing's list of ids.
static void announce(const struct thread_state *thread, uint32_t tid) {
    const struct thread_state *first = SECTION(&thaw_state, struct thread_state, SECTION_THREADS);
    rename_owner(thread, tid);
    if (thaw_state.new_tids) {
        int32_t *pair = thaw_state.new_tids + 2 * (thread - first);
        pair[0] = thread->tid;
        pair[1] = (int32_t)tid;
    }
}

// Sets the thread's scheduling. Its priority never becomes higher than this program's, since that needs a privilege.
static void set_priority(const struct thread_state *thread) {
    const int none = 0;
    if (thread->policy == SCHED_BATCH || thread->policy == SCHED_IDLE)
        sys3(SYS_sched_setscheduler, 0, thread->policy, (long)&none);
    if (thread->nice > 20 - (int)sys3(SYS_getpriority, 0, 0, 0)) // the call returns 20 minus the value
        sys3(SYS_setpriority, 0, 0, thread->nice);
    if (thread->io_priority)
        sys3(SYS_ioprio_set, 1 /* IOPRIO_WHO_PROCESS */, 0, thread->io_priority);
    if (thread->timer_slack_ns)
        sys_prctl(PR_SET_TIMERSLACK, (long)thread->timer_slack_ns, 0, 0, 0);
}

// Sets the state that only the thread itself can set; no other thread waits for this.
static void become(const struct thread_state *thread) {
    if (thread->gs_base)
        sys3(SYS_arch_prctl, ARCH_SET_GS_CODE, (long)thread->gs_base, 0);
    if (thread->robust_list)
        sys3(SYS_set_robust_list, (long)thread->robust_list, ROBUST_BYTES, 0);
    set_rseq(thread);
    set_priority(thread);
}

// The last thread that reads the tables unmaps them. So no thread has to wait until another one gets a processor.
static void leave_tables(void) {
    if (__atomic_sub_fetch(&reading, 1, __ATOMIC_ACQ_REL) == 0)
        sys_munmap(ZONE_TABLES, thaw_state.tables_bytes);
}

// Waits until the thread that called thawd_freeze has called thawd_release_threads, if the image was made with
// FREEZE_HOLD_THREADS. Meanwhile that thread renews what must differ between copies, such as the state of random number
// generators, and no other thread may use the old state. The wait has a limit of HOLD_S seconds, because the waiting
// thread may hold a lock that the renewing thread needs.
static void wait_if_held(struct landing *landing, int32_t tid) {
    int32_t alone = __atomic_load_n(&landing->runs_alone, __ATOMIC_ACQUIRE);
    if (!alone || alone == tid)
        return;
    uint64_t until_ns = monotonic_ns() + HOLD_S * UINT64_C(1000000000), now_ns;
    while (__atomic_load_n(&landing->runs_alone, __ATOMIC_ACQUIRE)) {
        if ((now_ns = monotonic_ns()) >= until_ns) {
            __atomic_store_n(&landing->hold_expired, 1, __ATOMIC_RELEASE);
            return;
        }
        const struct __kernel_timespec left = {(long)((until_ns - now_ns) / 1000000000),
                                               (long)((until_ns - now_ns) % 1000000000)};
        sys_futex((uint32_t *)&landing->runs_alone, FUTEX_WAIT, (uint32_t)alone, &left);
    }
}

// SAFETY: this runs on the stack of a frozen thread, below its signal frame, and uses only a few hundred bytes.
static void run_other(void *argument) {
    const struct thread_state *thread = argument;
    uint64_t context = thread->context;
    int32_t tid = thread->tid;
    struct landing *landing = (struct landing *)thaw_state.header->process.landing;
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE))
        sys_futex(&gate, FUTEX_WAIT, 0, 0);
    become(thread);
    leave_tables();
    wait_if_held(landing, tid);
    resume_context(context);
}

static uint64_t stack_of(const struct thread_state *thread) {
    return (thread->context - BELOW_CONTEXT) & ~UINT64_C(63);
}

void stage_threads(struct thaw *t) {
    const struct thread_state *threads = SECTION(t, struct thread_state, SECTION_THREADS);
    uint32_t count = COUNT(t, SECTION_THREADS);
    const uint64_t flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                           CLONE_SETTLS | CLONE_CHILD_SETTID | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    reading = count;
    for (uint32_t i = 1; i < count; i++) {
        // This is the address of glibc's pthread.tid: the kernel writes the new id where glibc reads it.
        int32_t *tid = (int32_t *)threads[i].clear_child_tid;
        sys_prctl(PR_SET_NAME, (long)threads[i].name, 0, 0, 0); // a new thread inherits it
        long result = clone_thread(flags, stack_of(&threads[i]), tid, tid, threads[i].fs_base, run_other,
                                   (void *)(uintptr_t)&threads[i]);
        if (SYS_FAILED(result))
            thaw_fail("a thread cannot be made (limit of processes, or memory)", "", result);
        announce(&threads[i], (uint32_t)result);
    }
}

static void run_leader(void *argument) {
    struct thaw *t = argument;
    const struct thread_state *thread = SECTION(t, struct thread_state, SECTION_THREADS);
    uint64_t context = thread->context;
    int32_t tid = thread->tid;
    struct landing *landing = (struct landing *)t->header->process.landing;
    sys3(SYS_arch_prctl, ARCH_SET_FS_CODE, (long)thread->fs_base, 0);
    *(int32_t *)thread->clear_child_tid = sys_gettid();
    sys3(SYS_set_tid_address, (long)thread->clear_child_tid, 0, 0);
    announce(thread, (uint32_t)sys_gettid());
    sys_prctl(PR_SET_NAME, (long)thread->name, 0, 0, 0);
    become(thread);
    rights_limit(&t->header->process);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    sys_futex(&gate, FUTEX_WAKE, INT_MAX, 0);
    leave_tables();
    wait_if_held(landing, tid);
    resume_context(context);
}

_Noreturn void thaw_resume(struct thaw *t) {
    switch_stack(stack_of(SECTION(t, struct thread_state, SECTION_THREADS)), run_leader, t);
}
