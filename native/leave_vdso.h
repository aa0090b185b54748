// Runs in the process that is frozen. Lets threads leave the vDSO before they are stopped.

#ifndef THAWD_LEAVE_VDSO_H
#define THAWD_LEAVE_VDSO_H

#include "image.h"

#define MOST_LEAVERS 32768

// A thread that was interrupted in the vDSO and continues until it has left.
struct leaver {
    int32_t tid;   // 0: it has left
    uint64_t mask; // the signals that it blocks otherwise
};

// In scratch memory, whose pages are zero. It must stay as long as a thread may be leaving.
struct leaving {
    uint64_t start, end;         // addresses of the vDSO's code; no end: threads are stopped inside
    void (*stop)(void *context); // called when a thread has left, in a signal handler with all signals blocked
    uint32_t count;
    struct leaver leavers[MOST_LEAVERS];
};

// Handles SIGTRAP until leave_end. Returns 0, or -errno.
int leave_begin(struct leaving *here, uint64_t start, uint64_t end, void (*stop)(void *context));
// Called in a signal handler with its ucontext. Returns 0 if the thread was not interrupted in the vDSO. Otherwise
// returns 1: the handler must return, and `stop` is called later.
int leave_vdso(struct leaving *here, void *context);
// From now on, threads are also stopped inside the vDSO.
void leave_no_more(struct leaving *here);
// Whether one of the program's own signal handlers, on the stack from `context` to `end`, has interrupted code between
// `start` and `end_of_code`. Then that code continues when the handler returns. `context` is that of a stopped thread.
int leave_is_interrupted(uint64_t context, uint64_t end, uint64_t start, uint64_t end_of_code);
void leave_end(void);
// Writes to `action` the action that SIGTRAP had before leave_begin.
void leave_replaced_action(struct signal_action *action);

#endif
