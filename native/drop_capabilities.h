// Runs in both address spaces. Giving capabilities up, for good.

#ifndef THAWD_DROP_H
#define THAWD_DROP_H

// Drops all capabilities of the calling thread, which must be the only one; executing a program cannot regain any.
// Returns 0, or -errno.
int drop_capabilities(void);

// Whether this is the initial user namespace, judged by its map of users.
int in_first_user_namespace(void);

#endif
