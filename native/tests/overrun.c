// Runs in the process that is frozen. A caller's error that the sanitizers must see: it shows that they look.

#include "harness.h"

CASE(provided_too_few, "the freeze reads beyond the list of descriptors that it was given") {
    int32_t *provided = malloc(sizeof *provided);
    CHECK(provided && open("/dev/null", O_RDONLY) > 2);
    *provided = 1000;
    freeze_providing(provided, 3);
}
