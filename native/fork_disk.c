// Runs in processes forked from a process that can be frozen, or from a copy. Mounts the forked process's own temporary
// folder, as thaw does for a copy.

#include "disk.h"
#include "drop_capabilities.h"
#include "freeze.h"
#include "text.h"

int thawd_disk(const char *at, const char *own, const char *lower, const char *tmp, struct freeze_report *report) {
    struct disk_failure failure;
    int error =
        disk_enter(&(struct disk){.at = at, .own = own, .lower = lower, .tmp = tmp, .is_environment = 1}, &failure);
    *report = (struct freeze_report){.bytes = sizeof *report};
    if (!error)
        return FREEZE_FROZEN;
    struct writer out = text_writer(report->stage, sizeof report->stage);
    put_text(&out, "disk");
    out = text_writer(report->text, sizeof report->text);
    put_text(&out, failure.what);
    put_text(&out, failure.detail);
    report->error = failure.refused ? 0 : -error;
    return failure.refused ? FREEZE_REFUSED : FREEZE_FAILED;
}

int thawd_drop_capabilities(void) {
    return drop_capabilities();
}
