// Runs in the process that is frozen. Causes an error that the sanitizers must detect, to show that they are active.

#include "harness.h"

CASE(provided_too_few, "the freeze reads beyond the list of descriptors that it was given") {
    int32_t *provided = malloc(sizeof *provided);
    CHECK(provided && open("/dev/null", O_RDONLY) > 2);
    *provided = 1000;
    freeze_providing(provided, 3);
}
