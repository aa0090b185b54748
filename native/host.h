// Runs in freeze and in thaw. Describes the machine, as far as a frozen process depends on it.

#ifndef THAWD_HOST_H
#define THAWD_HOST_H

#include "image.h"

// Fills in `host`. Returns 0 or -errno.
int host_describe(struct host_key *host);

// Returns a text about the first thing that `frozen` has and `now` lacks; NULL if a process that was frozen on the one
// can continue on the other.
const char *host_difference(const struct host_key *frozen, const struct host_key *now);

#endif
