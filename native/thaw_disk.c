// Runs in thaw's address space. Mounts the copy's own temporary folder before any other file is opened, and finds the
// files in it to which the copy will write.

#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>

#include "disk.h"
#include "thaw.h"

void stage_disk(struct thaw *t) {
    struct disk_failure failure;
    // A process with a root of its own always gets a user namespace of its own: processes of one user in one namespace
    // may reach each other's roots through /proc.
    t->disk.own_user = t->rights == RIGHTS_NAMESPACE || t->disk.root;
    if (!t->disk.at && !t->disk.own_user)
        return;
    if (t->disk.at && text_bytes(t->disk.at) >= sizeof t->disk_at)
        thaw_fail("the path of the temporary folder is too long", "", ENAMETOOLONG);
    if (t->disk.at)
        copy_bytes(t->disk_at, t->disk.at, text_bytes(t->disk.at) + 1);
    if (t->disk.tmp && text_bytes(t->disk.tmp) >= sizeof t->disk_tmp)
        thaw_fail("the second path of the temporary folder (--disk-tmp) is too long", "", ENAMETOOLONG);
    if (t->disk.tmp)
        copy_bytes(t->disk_tmp, t->disk.tmp, text_bytes(t->disk.tmp) + 1);
    if (t->again) // this program has executed itself again (exec_again): it is in the namespaces already
        return;
    if (t->disk.root && !t->run)
        open_image(t); // the image is not visible in the new root
    int result = disk_enter(&t->disk, &failure);
    if (result && failure.refused)
        thaw_refuse(failure.what, failure.detail);
    if (result)
        thaw_fail(failure.what, failure.detail, result);
}

int is_own_file(const struct thaw *t, const char *path) {
    return *t->disk_at && (disk_holds(t->disk_at, path) || (*t->disk_tmp && disk_holds(t->disk_tmp, path)));
}

static void open_once(struct thaw *t, uint32_t index, int flags) {
    const char *path = string_at(t, SECTION(t, struct file_identity, SECTION_FILES)[index].path);
    int fd = is_own_file(t, path) ? sys_open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0) : -1;
    if (fd >= 0)
        sys_close(fd); // an error is not reported here: the file is opened again later, and that reports it
}

// On an overlay a file is copied when it is first opened for writing. Descriptors that were opened before that keep
// reading the old contents. So this function first opens each such file for writing, and closes it again.
// Source: Documentation/filesystems/overlayfs.rst, "Non-standard behavior".
void make_files_own(struct thaw *t) {
    if (!*t->disk_at)
        return;
    const struct operation *operations = SECTION(t, struct operation, SECTION_OPERATIONS);
    for (uint32_t i = 0; i < COUNT(t, SECTION_OPERATIONS); i++)
        if (operations[i].kind == OPERATION_FILE_SHARED && operations[i].protection & PROT_WRITE)
            open_once(t, operations[i].index, O_RDWR);
    const struct descriptor *descriptors = SECTION(t, struct descriptor, SECTION_DESCRIPTORS);
    for (uint32_t i = 0; i < COUNT(t, SECTION_DESCRIPTORS); i++)
        if (descriptors[i].kind == DESCRIPTOR_FILE && (descriptors[i].open_flags & O_ACCMODE) != O_RDONLY)
            open_once(t, descriptors[i].index, (int)descriptors[i].open_flags & O_ACCMODE);
}
