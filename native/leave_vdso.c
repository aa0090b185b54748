// Runs in the process that is frozen. Lets a thread that was interrupted in the vDSO leave it, before it is stopped: in
// a copy, the vDSO may be another one.
//
// The thread continues one instruction at a time: with the trap flag set, each instruction is followed by SIGTRAP. The
// handler of SIGTRAP stops the thread once it is outside of the vDSO. Meanwhile the thread blocks all other signals.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, "Single-Step Exception Condition".

#define _GNU_SOURCE
#include "leave_vdso.h"

#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#include "sys.h"

#define TRAP_FLAG 0x100 // of EFLAGS
#define INTERRUPT_FLAG 0x200
#define USER_CS 0x33 // Source: arch/x86/include/asm/segment.h
#define USER_SS 0x2b
#define SEARCHED_BYTES (256 * 1024) // of a stack

static struct leaving *leaving; // NULL: no thread is leaving
static struct signal_action replaced;

extern void thawd_restorer(void) __attribute__((visibility("hidden")));

static int is_inside(const struct leaving *here, const ucontext_t *context) {
    uint64_t at = (uint64_t)context->uc_mcontext.gregs[REG_RIP];
    return at >= here->start && at < __atomic_load_n(&here->end, __ATOMIC_ACQUIRE);
}

static struct leaver *find(struct leaving *here, int32_t tid) {
    uint32_t count = __atomic_load_n(&here->count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count && i < MOST_LEAVERS; i++)
        if (__atomic_load_n(&here->leavers[i].tid, __ATOMIC_ACQUIRE) == tid)
            return &here->leavers[i];
    return 0;
}

// Handles a SIGTRAP that has nothing to do with a freeze as it would have been handled without one.
static void pass_on(int signal, siginfo_t *info, void *context) {
    if (replaced.handler > (uint64_t)SIG_IGN) {
        ((void (*)(int, siginfo_t *, void *))replaced.handler)(signal, info, context);
    } else if (replaced.handler == (uint64_t)SIG_DFL) {
        sys6(SYS_rt_sigaction, SIGTRAP, (long)&replaced, 0, 8, 0, 0);
        sys3(SYS_tgkill, sys_getpid(), sys_gettid(), SIGTRAP);
    }
}

static void on_trap(int signal, siginfo_t *info, void *interrupted) {
    ucontext_t *context = interrupted;
    struct leaving *here = __atomic_load_n(&leaving, __ATOMIC_ACQUIRE);
    struct leaver *self = here ? find(here, sys_gettid()) : 0;
    if (!self) {
        pass_on(signal, info, context);
        return;
    }
    if (is_inside(here, context))
        return;
    context->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
    copy_bytes(&context->uc_sigmask, &self->mask, sizeof self->mask);
    __atomic_store_n(&self->tid, 0, __ATOMIC_RELEASE);
    here->stop(context);
}

int leave_vdso(struct leaving *here, void *interrupted) {
    ucontext_t *context = interrupted;
    if (!is_inside(here, context))
        return 0;
    uint32_t index = __atomic_fetch_add(&here->count, 1, __ATOMIC_ACQ_REL);
    if (index >= MOST_LEAVERS)
        return 0;
    struct leaver *self = &here->leavers[index];
    const uint64_t all_but_trap = ~(UINT64_C(1) << (SIGTRAP - 1));
    copy_bytes(&self->mask, &context->uc_sigmask, sizeof self->mask);
    __atomic_store_n(&self->tid, sys_gettid(), __ATOMIC_RELEASE);
    copy_bytes(&context->uc_sigmask, &all_but_trap, sizeof all_but_trap);
    context->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
    return 1;
}

int leave_begin(struct leaving *here, uint64_t start, uint64_t end, void (*stop)(void *context)) {
    here->start = start;
    here->end = end;
    here->stop = stop;
    __atomic_store_n(&leaving, here, __ATOMIC_RELEASE);
    struct signal_action before, action = {
                                     .handler = (uint64_t)on_trap,
                                     .flags = SA_SIGINFO | 0x04000000, // SA_RESTORER
                                     .restorer = (uint64_t)thawd_restorer,
                                     .mask = ~UINT64_C(0),
                                 };
    int result = (int)sys6(SYS_rt_sigaction, SIGTRAP, (long)&action, (long)&before, 8, 0, 0);
    if (before.handler != (uint64_t)on_trap) // the handler of an earlier freeze may have stayed for a late thread
        replaced = before;
    return result;
}

void leave_no_more(struct leaving *here) {
    __atomic_store_n(&here->end, 0, __ATOMIC_RELEASE);
}

// A signal frame is recognised by its registers: the address in the vDSO, and after it the flags, of which "interrupts
// enabled" is set, and the segments CS and SS of 64-bit programs. What an ended handler has left may be found, too.
// It reads the stack frames of all functions, which AddressSanitizer would take for an error.
__attribute__((no_sanitize("address"))) int leave_is_interrupted(uint64_t context, uint64_t end, uint64_t start,
                                                                 uint64_t end_of_code) {
    const uint64_t frame = context + offsetof(ucontext_t, uc_mcontext.gregs) + REG_CSGSFS * sizeof(greg_t);
    end = end - context > SEARCHED_BYTES ? context + SEARCHED_BYTES : end;
    for (const uint64_t *at = (const uint64_t *)frame; (uint64_t)(at + 2) < end; at++)
        if (at[0] >= start && at[0] < end_of_code && at[1] >> 32 == 0 && at[1] & INTERRUPT_FLAG &&
            (at[2] & 0xffff) == USER_CS && at[2] >> 48 == USER_SS)
            return 1;
    return 0;
}

void leave_end(void) {
    sys6(SYS_rt_sigaction, SIGTRAP, (long)&replaced, 0, 8, 0, 0);
    __atomic_store_n(&leaving, 0, __ATOMIC_RELEASE);
}

void leave_replaced_action(struct signal_action *action) {
    *action = replaced;
}
