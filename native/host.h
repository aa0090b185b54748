// Runs in freeze and in thaw. Describes the machine, as far as a frozen process depends on it.

#ifndef THAWD_HOST_H
#define THAWD_HOST_H

#include "cpu.h"
#include "image.h"

// Fills in the fields of `host` about the kernel and the start of the machine; the others are 0. Returns 0 or -errno.
int host_describe_start(struct host_key *host);
// Fills in all of `host`. Returns 0 or -errno.
int host_describe(struct host_key *host);

// Returns a text about the first thing that `frozen` has and `now` lacks, and may write its name to `detail`; NULL if a
// process that was frozen on the one can continue on the other.
const char *host_difference(const struct host_key *frozen, const struct host_key *now, char detail[CPU_DETAIL_BYTES]);

#endif
