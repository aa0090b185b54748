// Runs in both address spaces. Giving capabilities up, for good.

#ifndef THAWD_DROP_H
#define THAWD_DROP_H

// No capability is left to the calling thread, which must be the only one, nor can any be had by executing a program.
// 0, or -errno.
int drop_capabilities(void);

// Whether this is the user namespace that the kernel began with, by its map of users.
int in_first_user_namespace(void);

#endif
