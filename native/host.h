// Runs in both address spaces. What the machine is, as far as a frozen process depends on it.

#ifndef THAWD_HOST_H
#define THAWD_HOST_H

#include "image.h"

// Fills in `host`. Returns 0 or -errno.
int host_describe(struct host_key *host);

// A text that says how `now` differs from `frozen`; NULL when they are equal.
const char *host_difference(const struct host_key *frozen, const struct host_key *now);

#endif
