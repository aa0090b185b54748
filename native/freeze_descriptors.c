// Runs in the process that is frozen. Describes its descriptors so that thaw can make them again; refuses those that
// thaw could not make.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "descriptors.h"
#include "sys.h"

#define INFO_BYTES 65536
#define F_DUPFD_QUERY_COMMAND 1027 // F_DUPFD_QUERY; include/uapi/linux/fcntl.h, Linux 6.10

static int is_provided(struct freezing *f, int number) {
    for (uint32_t i = 0; i < f->request->provided_count; i++)
        if (f->request->provided[i] == number)
            return 1;
    return number <= 2;
}

static int is_own(struct freezing *f, int number, int folder_fd) {
    return number == f->image_fd || number == f->pagemap_fd || number == f->memory_fd || number == folder_fd;
}

int refuse_descriptor(struct freezing *f, const struct look *look, const char *what) {
    char detail[LINK_BYTES + 32];
    struct writer out = text_writer(detail, sizeof detail);
    put_number(&out, (unsigned)look->to->number, 10);
    put_text(&out, " (");
    put_text(&out, look->link);
    put_text(&out, ")");
    return refuse(f, "descriptors", what, detail);
}

static const struct {
    const char *link, *what;
} refused[] = {
    {"anon_inode:[fanotify]", "a fanotify watch cannot be frozen; stop watching files before the freeze: descriptor "},
    {"anon_inode:[userfaultfd]", "a userfaultfd cannot be frozen; close it before the freeze: descriptor "},
    {"anon_inode:[pidfd]",
     "a process descriptor refers to a process that no copy has; close it before the freeze: descriptor "},
    {"anon_inode:[perf_event]",
     "a performance counter cannot be frozen; stop the profiler before the freeze: descriptor "},
};

int refuse_unknown(struct freezing *f, const struct look *look) {
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++)
        if (text_equal(look->link, refused[i].link))
            return refuse_descriptor(f, look, refused[i].what);
    return refuse_descriptor(
        f, look, "a descriptor is of a kind that the engine does not know; close it before the freeze: descriptor ");
}

static int is_of_other_process(struct freezing *f, const char *path) {
    if (!text_begins(path, "/proc/") || path[6] < '0' || path[6] > '9')
        return 0;
    path += 6;
    return take_number(&path, 10) != (uint64_t)f->pid;
}

static int describe_file(struct freezing *f, struct look *look) {
    struct descriptor *to = look->to;
    to->position = (uint64_t)sys3(SYS_lseek, to->number, 0, SEEK_CUR);
    if (SYS_FAILED(to->position))
        to->position = 0;
    if (look->status.st_nlink == 0 && S_ISREG(look->status.st_mode)) {
        if (text_begins(look->link, "/memfd:") && text_ends(look->link, " (deleted)"))
            look->link[text_bytes(look->link) - 10] = 0;
        to->kind = DESCRIPTOR_OBJECT;
        to->index = object_of(f, (uint64_t)major(look->status.st_dev) << 32 | minor(look->status.st_dev),
                              look->status.st_ino, look->link);
        if (to->index == NO_INDEX)
            return refuse(f, "descriptors",
                          "too many open files are deleted, or are memory files (memfd); close some before the freeze",
                          "");
        struct memory_object *object = AT(f->sections[SECTION_OBJECTS], struct memory_object, to->index);
        object->bytes = (uint64_t)look->status.st_size;
        AT(f->sources, struct object_source, to->index)->fd = to->number;
        long seals = sys_fcntl(to->number, F_GET_SEALS, 0);
        object->seals = seals > 0 ? (uint32_t)seals : 0;
        return 0;
    }
    if (is_of_other_process(f, look->link))
        return refuse_descriptor(f, look,
                                 "a file of another process in /proc is open; close it before the freeze: descriptor ");
    to->kind = DESCRIPTOR_FILE;
    uint32_t path = add_string(f, look->link);
    to->index = path == NO_INDEX ? NO_INDEX : add_file(f, path, 0);
    return to->index == NO_INDEX
               ? refuse_descriptor(f, look,
                                   "an open file has no path any more; close it before the freeze: descriptor ")
               : 0;
}

static int describe_device(struct freezing *f, struct look *look) {
    unsigned number = minor(look->status.st_rdev);
    if (major(look->status.st_rdev) != 1 || !(number == 3 || number == 5 || (number >= 7 && number <= 9)))
        return refuse_descriptor(
            f, look,
            "an open device cannot be frozen (a GPU, a terminal, …); open it on the first invocation: descriptor ");
    look->to->kind = DESCRIPTOR_DEVICE;
    uint32_t path = add_string(f, look->link);
    look->to->index = path == NO_INDEX ? NO_INDEX : add_file(f, path, 0);
    return look->to->index == NO_INDEX ? refuse_unknown(f, look) : 0;
}

static int describe_one(struct freezing *f, struct look *look) {
    if (find_line(look->info, "lock:"))
        return refuse_descriptor(f, look,
                                 "the process holds a lock on a file, which no copy would hold; release it before the "
                                 "freeze (ONNX Runtime's telemetry holds one unless ORT_DISABLE_TELEMETRY=1 is set): "
                                 "descriptor ");
    if (S_ISREG(look->status.st_mode) || S_ISDIR(look->status.st_mode))
        return describe_file(f, look);
    if (S_ISCHR(look->status.st_mode))
        return describe_device(f, look);
    if (S_ISFIFO(look->status.st_mode))
        return pipe_describe(f, look);
    if (S_ISSOCK(look->status.st_mode))
        return socket_describe(f, look);
    if (text_equal(look->link, "anon_inode:[io_uring]"))
        return ring_describe(f, look);
    int result = event_describe(f, look);
    if (result <= 0)
        return result;
    return refuse_unknown(f, look);
}

// Whether two descriptors share one open file. Many containers deny kcmp(2). Linux 6.10 has an fcntl for this; on older
// kernels a flag of one descriptor's open file is changed for a moment, to see whether the other descriptor shows it.
static int are_one_file(struct freezing *f, int a, int b) {
    long result = sys6(SYS_kcmp, f->pid, f->pid, KCMP_FILE, a, b, 0);
    if (result >= 0)
        return result == 0;
    result = sys_fcntl(a, F_DUPFD_QUERY_COMMAND, b);
    if (result >= 0)
        return result == 1;
    long flags = sys_fcntl(a, F_GETFL, 0);
    if (flags != sys_fcntl(b, F_GETFL, 0) || sys_fcntl(a, F_SETFL, flags ^ O_NONBLOCK) < 0)
        return 0;
    result = sys_fcntl(b, F_GETFL, 0) != flags;
    sys_fcntl(a, F_SETFL, flags);
    return (int)result;
}

// Looks for an earlier descriptor of the same open file. Such descriptors share position and flags, so the later ones
// become copies of the first. Only descriptors with equal inodes are compared.
static int find_original(struct freezing *f, struct look *look) {
    struct table *table = &f->sections[SECTION_DESCRIPTORS];
    for (uint32_t i = 0; i + 1 < table->count; i++) {
        const struct descriptor *other = AT(*table, struct descriptor, i);
        const struct inode *inode = AT(f->inodes, struct inode, i);
        if (inode->number == look->status.st_ino && inode->device == look->status.st_dev &&
            other->kind != DESCRIPTOR_COPY && are_one_file(f, other->number, look->to->number)) {
            look->to->kind = DESCRIPTOR_COPY;
            look->to->index = i;
            return 1;
        }
    }
    return 0;
}

static int look_at(struct freezing *f, int number) {
    static const char folder[] = "/proc/self/fd";
    struct look look = {.info = (const char *)f->text.base};
    char path[64];
    struct writer out = text_writer(path, sizeof path);
    put_text(&out, folder);
    put_text(&out, "/");
    put_number(&out, (unsigned)number, 10);
    long bytes = sys6(SYS_readlinkat, AT_FDCWD, (long)path, (long)look.link, LINK_BYTES - 1, 0, 0);
    if (bytes < 0 || sys3(SYS_fstat, number, (long)&look.status, 0) < 0)
        return fail(f, "descriptors", bytes < 0 ? bytes : -EBADF, "a descriptor cannot be examined");
    look.to = table_add(&f->sections[SECTION_DESCRIPTORS]);
    struct inode *inode = table_add(&f->inodes);
    if (!look.to || !inode)
        return refuse(f, "descriptors",
                      "there are more descriptors than an image can hold; close some before the freeze", "");
    *inode = (struct inode){look.status.st_dev, look.status.st_ino};
    look.to->number = number;
    look.to->open_flags = (uint32_t)sys_fcntl(number, F_GETFL, 0);
    look.to->close_on_exec = sys_fcntl(number, F_GETFD, 0) & FD_CLOEXEC;
    if (is_provided(f, number)) {
        look.to->kind = DESCRIPTOR_PROVIDED;
        return 0;
    }
    if (find_original(f, &look))
        return 0;
    out = text_writer(path, sizeof path);
    put_text(&out, "/proc/self/fdinfo/");
    put_number(&out, (unsigned)number, 10);
    bytes = read_text_file(path, (char *)f->text.base, INFO_BYTES);
    return bytes < 0 ? fail(f, "descriptors", bytes, "/proc/self/fdinfo cannot be read") : describe_one(f, &look);
}

uint32_t object_of(struct freezing *f, uint64_t device, uint64_t inode, const char *name) {
    for (uint32_t i = 0; i < f->sources.count; i++) {
        const struct object_source *known = AT(f->sources, struct object_source, i);
        if (known->device == device && known->inode == inode)
            return i;
    }
    struct object_source *source = table_add(&f->sources);
    struct memory_object *object = table_add(&f->sections[SECTION_OBJECTS]);
    uint32_t text = add_string(f, name);
    if (!source || !object || text == NO_INDEX)
        return NO_INDEX;
    *source = (struct object_source){device, inode, -1};
    object->name = text;
    return f->sources.count - 1;
}

int descriptors_describe(struct freezing *f) {
    int fd = sys_open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return fail(f, "descriptors", fd, "/proc/self/fd cannot be listed");
    char buffer[2048];
    long bytes;
    int result = 0;
    while (!result && (bytes = sys3(SYS_getdents64, fd, (long)buffer, sizeof buffer)) > 0)
        for (long at = 0; !result && at < bytes;) {
            const char *name = buffer + at + 19; // d_name
            at += *(uint16_t *)(buffer + at + 16);
            int is_number = *name >= '0' && *name <= '9';
            int number = (int)take_number(&name, 10);
            if (is_number && !is_own(f, number, fd))
                result = look_at(f, number);
        }
    sys_close(fd);
    if (!result)
        result = pipes_pair(f);
    if (!result)
        result = sockets_settle(f);
    if (!result)
        result = rings_settle(f);
    return result ? result : fault_point(f, "descriptors");
}
