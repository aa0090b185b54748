// Runs in freeze and in thaw. Describes the CPU as far as programs can depend on it, and compares two of them.

#ifndef THAWD_CPU_H
#define THAWD_CPU_H

#include "image.h"

#define CPU_WORDS 14
#define XSAVE_COMPONENTS 32
#define CPU_DETAIL_BYTES 40

// Fills in the fields of `host` about the CPU. The others, and these, must be 0.
void cpu_describe(struct host_key *host);

// Returns a text about the first thing that `frozen` has and `now` lacks, and writes its name to `detail`; NULL if a
// process that was frozen on the one CPU can continue on the other.
const char *cpu_difference(const struct host_key *frozen, const struct host_key *now, char detail[CPU_DETAIL_BYTES]);

#endif
