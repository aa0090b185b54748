// Runs in freeze and in thaw. Describes the machine, as far as a frozen process depends on it.

#ifndef THAWD_HOST_H
#define THAWD_HOST_H

#include "image.h"

// Fills in `host`. Returns 0 or -errno.
int host_describe(struct host_key *host);

// Returns a text about the first difference between `frozen` and `now`; NULL when they are equal.
const char *host_difference(const struct host_key *frozen, const struct host_key *now);

#endif
