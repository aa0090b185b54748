// Runs in freeze and in thaw. Drops capabilities permanently.

#ifndef THAWD_DROP_H
#define THAWD_DROP_H

// Drops all capabilities of the calling thread, which must be the process's only thread. The process cannot regain any,
// even by executing a program. Returns 0, or -errno.
int drop_capabilities(void);

// Whether the process is in the initial user namespace, judging by the namespace's map of user ids.
int in_first_user_namespace(void);

#endif
