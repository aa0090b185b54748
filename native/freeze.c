// Runs in the process that is frozen. thawd_freeze: writes the image, then returns in the original and in each copy.

#define _GNU_SOURCE
#include "freeze.h"

#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <linux/futex.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "freeze_parts.h"
#include "sys.h"

#define PARCEL_BYTES (UINT64_C(4) << 20) // for a copy's arguments and environment; takes no memory before it is used
#define PARKING_BYTES (UINT64_C(8) << 20)
#define TEXT_AREA_BYTES (UINT64_C(8) << 20)
#define HOOK_TRIES 100 // how often to try again if a thread is stopped in code that must be patched

struct landing thawd_landing;

static const char *const fault_points[] = {"open",        "hooks",   "park", "threads", "mappings", "pages",
                                           "descriptors", "process", "plan", "output",  "sync",     "rename"};

int freeze_ends(struct freezing *f, int result, const char *stage, int error, const char *text, const char *detail) {
    struct freeze_report *report = f->report;
    struct writer out = text_writer(report->stage, sizeof report->stage);
    put_text(&out, stage);
    out = text_writer(report->text, sizeof report->text);
    put_text(&out, text);
    put_text(&out, detail);
    report->error = error;
    return result;
}

int fault_point(struct freezing *f, const char *name) {
    if (!f->request->fail_at || !text_equal(f->request->fail_at, name))
        return 0;
    return freeze_ends(f, FREEZE_FAILED, name, 0, "failed at a fault point, as the test requested: ", name);
}

void *table_add(struct table *table) {
    if ((table->count + UINT64_C(1)) * table->record_bytes > table->capacity_bytes)
        return 0;
    void *record = table->base + (uint64_t)table->count++ * table->record_bytes;
    clear_bytes(record, table->record_bytes);
    return record;
}

uint32_t add_string(struct freezing *f, const char *text) {
    struct table *strings = &f->sections[SECTION_STRINGS];
    uint64_t bytes = text_bytes(text) + 1;
    static uint32_t last; // the last text's offset; the same text often follows, as mappings of one file do
    if (last < strings->count && text_equal((const char *)strings->base + last, text))
        return last;
    if (strings->count + bytes > strings->capacity_bytes)
        return NO_INDEX;
    copy_bytes(strings->base + strings->count, text, bytes);
    last = strings->count;
    strings->count += (uint32_t)bytes;
    return last;
}

uint32_t add_file(struct freezing *f, uint32_t path, int checked) {
    struct table *files = &f->sections[SECTION_FILES];
    for (uint32_t i = files->count; i-- > 0;)
        if (AT(*files, struct file_identity, i)->path == path) {
            AT(*files, struct file_identity, i)->checked |= (uint32_t)checked;
            return i;
        }
    struct stat status;
    const char *text = (const char *)f->sections[SECTION_STRINGS].base + path;
    if (sys6(SYS_newfstatat, AT_FDCWD, (long)text, (long)&status, 0, 0, 0) < 0)
        return NO_INDEX;
    struct file_identity *file = table_add(files);
    if (!file)
        return NO_INDEX;
    *file = (struct file_identity){
        .device = status.st_dev,
        .inode = status.st_ino,
        .bytes = (uint64_t)status.st_size,
        .modified_ns = status.st_mtim.tv_sec * INT64_C(1000000000) + status.st_mtim.tv_nsec,
        .path = path,
        .checked = checked && S_ISREG(status.st_mode),
    };
    return files->count - 1;
}

// Divides scratch memory among the tables. A page takes no memory before it is used.
static int make_tables(struct freezing *f) {
    const struct {
        struct table *table;
        uint32_t record_bytes;
        uint64_t bytes;
    } wanted[] = {
        {&f->mappings, sizeof(struct mapping), 32u << 20},
        {&f->ranges, sizeof(struct range), 32u << 20},
        {&f->pipes, sizeof(struct pipe_contents), 1u << 20},
        {&f->sources, sizeof(struct object_source), 1u << 20},
        {&f->ring_mappings, sizeof(struct mapping), 1u << 16},
        {&f->inodes, sizeof(struct inode), 4u << 20},
        {&f->text, 1, TEXT_AREA_BYTES},
        {&f->sections[SECTION_OPERATIONS], sizeof(struct operation), 64u << 20},
        {&f->sections[SECTION_THREADS], sizeof(struct thread_state), 4u << 20},
        {&f->sections[SECTION_FILES], sizeof(struct file_identity), 4u << 20},
        {&f->sections[SECTION_OBJECTS], sizeof(struct memory_object), 1u << 20},
        {&f->sections[SECTION_DESCRIPTORS], sizeof(struct descriptor), 4u << 20},
        {&f->sections[SECTION_EPOLL], sizeof(struct epoll_watch), 4u << 20},
        {&f->sections[SECTION_SOCKETS], sizeof(struct socket_state), 4u << 20},
        {&f->sections[SECTION_OPTIONS], sizeof(struct socket_option), 4u << 20},
        {&f->sections[SECTION_RINGS], sizeof(struct ring_state), 1u << 16},
        {&f->sections[SECTION_SIGNALS], sizeof(struct signal_action), 1u << 16},
        {&f->sections[SECTION_WORDS], sizeof(struct changed_word), 16u << 20},
        {&f->sections[SECTION_VDSO], 1, 1u << 20},
        {&f->sections[SECTION_STRINGS], 1, 16u << 20},
    };
    f->scratch_bytes = PARKING_BYTES;
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++)
        f->scratch_bytes += wanted[i].bytes;
    void *scratch =
        mmap(0, f->scratch_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (scratch == MAP_FAILED)
        return fail(f, "open", -errno,
                    "there is no address space for freeze's tables, about 200 MiB; raise the limit (ulimit -v)");
    f->scratch = (uint64_t)scratch;
    unsigned char *at = (unsigned char *)scratch + PARKING_BYTES;
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].table = (struct table){at, 0, wanted[i].record_bytes, wanted[i].bytes};
        at += wanted[i].bytes;
    }
    return 0;
}

static int open_all(struct freezing *f, const char *partial) {
    void *parcel = mmap(0, PARCEL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (parcel == MAP_FAILED)
        return fail(f, "open", -errno, "there is no memory for a copy's arguments");
    f->parcel = (uint64_t)parcel;
    f->process.parcel_bytes = PARCEL_BYTES;
    f->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    f->memory_fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (f->pagemap_fd < 0 || f->memory_fd < 0)
        return fail(f, "open", -errno, "/proc/self/pagemap or /proc/self/mem cannot be opened");
    unlink(partial);
    f->image_fd = open(partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->image_fd < 0)
        return freeze_ends(
            f, FREEZE_FAILED, "open", errno,
            "the image cannot be created; create its folder, or choose one that this user may write to: ", partial);
    return fault_point(f, "open");
}

// Notes in the landing which file each earlier image is. Its device may have another number at the thaw. The landing is
// memory, so this comes before `pages_find`.
static int note_earlier_images(struct freezing *f) {
    for (uint32_t i = 0; i < thawd_landing.image_count; i++)
        thawd_landing.images[i].file = NO_INDEX;
    for (uint32_t i = 0; i < f->mappings.count; i++) {
        const struct mapping *mapping = AT(f->mappings, struct mapping, i);
        const struct landed_image *image = image_of(mapping);
        if (!image || mapping->deleted || mapping->complete)
            continue;
        uint32_t file = add_file(f, mapping->path, 1);
        if (file == NO_INDEX)
            return fail(f, "mappings", -ENOENT, "an earlier image of this process cannot be examined");
        thawd_landing.images[image - thawd_landing.images].file = file;
    }
    return 0;
}

// Writes the image. A complete image refers to no earlier image, so its landing must not name one: another file may
// have the number of that image's inode by the time of the thaw, and its memory would be taken for memory of an image.
static int output_with_landing(struct freezing *f) {
    uint32_t image_count = thawd_landing.image_count;
    uint64_t moved = thawd_landing.moved;
    if (f->request->flags & FREEZE_COMPLETE)
        thawd_landing.image_count = thawd_landing.moved = 0;
    int result = output(f);
    thawd_landing.image_count = image_count;
    thawd_landing.moved = moved;
    return result;
}

// Called in a signal handler of the thread that called thawd_freeze, while all other threads are stopped.
static int write_image(struct freezing *f) {
    static int (*const steps[])(struct freezing *) = {
        park_describe,        mappings_read, note_earlier_images, process_describe, pages_find,
        descriptors_describe, plan,          output_with_landing,
    };
    uint64_t started_ns = monotonic_ns();
    int result = patches_install(f);
    for (unsigned i = 0; !result && i < sizeof steps / sizeof *steps; i++) {
        if (steps[i] == output_with_landing)
            f->report->scan_ns = monotonic_ns() - started_ns;
        result = steps[i](f);
    }
    f->report->write_ns = monotonic_ns() - started_ns - f->report->scan_ns;
    f->report->operations = f->sections[SECTION_OPERATIONS].count;
    f->report->threads = f->sections[SECTION_THREADS].count;
    f->report->descriptors = f->sections[SECTION_DESCRIPTORS].count;
    patches_remove(f);
    clocks_forget(f);
    return result;
}

// Stops all threads and writes the image. Tries again while libc_patches.c reports EAGAIN: a thread was stopped at the
// beginning of a function that must be patched.
static int stop_and_write(struct freezing *f) {
    for (int tries_left = HOOK_TRIES;; tries_left--) {
        uint64_t started_ns = monotonic_ns();
        int result = park_all(f);
        f->report->park_ns = monotonic_ns() - started_ns;
        if (!result)
            result = park_self(f, write_image);
        if (thawd_landing.restored)
            return FREEZE_THAWED;
        int may_unmap = park_release(f);
        if (!may_unmap)
            f->scratch = 0;
        if (result != FREEZE_FAILED || f->report->error != EAGAIN || !tries_left || !may_unmap)
            return result;
        usleep(1000);
        madvise((void *)f->scratch, PARKING_BYTES, MADV_REMOVE); // makes the pages zero again
    }
}

// Syncs the image to the disk, then renames it.
static int make_durable(struct freezing *f, const char *partial) {
    uint64_t started_ns = monotonic_ns();
    if (fsync(f->image_fd) < 0)
        return freeze_ends(f, FREEZE_FAILED, "sync", errno,
                           "the image cannot be written; free some space, or choose another folder: ", partial);
    int result = fault_point(f, "sync");
    if (!result && rename(partial, f->request->path) < 0)
        result = fail(f, "rename", -errno, "the image cannot be renamed from PATH.partial to PATH");
    if (result)
        return result;
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", f->request->path);
    char *slash = strrchr(folder, '/');
    snprintf(slash ? slash + (slash == folder) : folder, 2, "%s", slash ? "" : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    f->report->sync_ns = monotonic_ns() - started_ns;
    result = fault_point(f, "rename");
    if (result)
        unlink(f->request->path);
    return result;
}

static void close_all(struct freezing *f, const char *partial, int result) {
    if (f->image_fd >= 0)
        close(f->image_fd);
    if (f->pagemap_fd >= 0)
        close(f->pagemap_fd);
    if (f->memory_fd >= 0)
        close(f->memory_fd);
    if (f->parcel)
        munmap((void *)f->parcel, PARCEL_BYTES);
    if (f->scratch)
        munmap((void *)f->scratch, f->scratch_bytes);
    if (result && f->image_fd >= 0)
        unlink(partial);
}

static void report_landing(struct freeze_report *report) {
    report->restore_ns = monotonic_ns() - thawd_landing.started_ns;
    report->arguments = (const char *const *)thawd_landing.arguments;
    report->environment = (const char *const *)thawd_landing.environment;
    report->text[0] = report->stage[0] = 0;
    report->error = 0;
}

static int list_fault_points(struct freezing *f) {
    struct writer out = text_writer(f->report->text, sizeof f->report->text);
    for (unsigned i = 0; i < sizeof fault_points / sizeof *fault_points; i++) {
        put_text(&out, i ? "," : "");
        put_text(&out, fault_points[i]);
    }
    return FREEZE_FAILED;
}

// The main thread may have ended by pthread_exit. The files in /proc/self describe the main thread, so they then show
// no memory.
static int refuse_without_leader(struct freezing *f) {
    char stat[512];
    long bytes = read_text_file("/proc/self/stat", stat, sizeof stat);
    const char *at = bytes > 0 ? strrchr(stat, ')') : 0;
    if (at && at[2] == 'Z')
        return refuse(f, "threads", "the main thread has ended; keep it running until after the freeze", "");
    return 0;
}

static int freeze(struct freezing *f, const char *partial) {
    int result = refuse_without_leader(f);
    int is_complete = (f->request->flags & FREEZE_COMPLETE) != 0;
    if (!result && !is_complete && thawd_landing.image_count >= LANDING_IMAGES)
        result =
            refuse(f, "open", "the process was frozen and thawed too often (eight times at most); start it again", "");
    if (!result)
        result = make_tables(f);
    if (!result)
        result = open_all(f, partial);
    if (!result)
        result = patches_find(f);
    if (result)
        return result;
    add_string(f, "");
    f->header.glibc = add_string(f, gnu_get_libc_version());
    vdso_note(f);
    malloc_trim(0);
    uint32_t restored = thawd_landing.restored;
    thawd_landing.restored = 0; // if this process is a copy, it is now the original of the new image
    thawd_landing.hold_expired = 0;
    thawd_landing.runs_alone = f->request->flags & FREEZE_HOLD_THREADS ? f->writer_tid : 0;
    result = stop_and_write(f);
    if (result == FREEZE_THAWED)
        return result;
    thawd_landing.runs_alone = 0;
    thawd_landing.restored = restored;
    return result ? result : make_durable(f, partial);
}

// Allows one freeze at a time, because the signal handlers of all threads share one state.
static uint32_t busy;

int thawd_freeze(const struct freeze_request *request, struct freeze_report *report) {
    struct freezing *f = calloc(1, sizeof *f);
    char partial[4096];
    memset(report, 0, sizeof *report);
    if (!f)
        return FREEZE_FAILED;
    *f = (struct freezing){.request = request, .report = report, .image_fd = -1, .pagemap_fd = -1, .memory_fd = -1};
    f->pid = sys_getpid();
    f->writer_tid = sys_gettid();
    // If the caller was built for another version of the library, `path` may be at another offset of its struct.
    const char *path = request->bytes == sizeof *request && request->path ? request->path : "";
    int length = snprintf(partial, sizeof partial, "%s.partial", path);
    int result;
    if (!*path || length >= (int)sizeof partial)
        result = fail(f, "open", -EINVAL,
                      "the request is for another version of the library, or its path is missing or too long");
    else if (request->fail_at && !strcmp(request->fail_at, "?"))
        result = list_fault_points(f);
    else if (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQ_REL))
        result = refuse(f, "open", "another thread is freezing this process; freeze again afterwards", "");
    else {
        result = freeze(f, partial);
        __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    }
    if (result == FREEZE_THAWED)
        report_landing(report);
    else
        close_all(f, partial, result);
    report->bytes = sizeof *report;
    free(f);
    return result;
}

int thawd_release_threads(void) {
    __atomic_store_n(&thawd_landing.runs_alone, 0, __ATOMIC_RELEASE);
    sys_futex((uint32_t *)&thawd_landing.runs_alone, FUTEX_WAKE, INT_MAX, 0);
    return !__atomic_load_n(&thawd_landing.hold_expired, __ATOMIC_ACQUIRE);
}

int32_t thawd_new_tid(int32_t tid) {
    const int32_t *pairs = (const int32_t *)thawd_landing.tids;
    for (uint64_t i = 0; i < thawd_landing.tid_count; i++)
        if (pairs[2 * i] == tid)
            return pairs[2 * i + 1];
    return 0;
}
