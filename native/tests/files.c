// Runs in the process that is frozen. Tests open files: their offsets, flags and numbers, and which descriptors share
// them.

#include "harness.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static int flags_of(int fd) {
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0);
    return flags;
}

CASE(offsets, "files keep their offset, their access mode, and whether they close on exec") {
    close(make_file("data", 10, 1));
    int reading = open("data", O_RDONLY | O_CLOEXEC), both = open("data", O_RDWR), writing = open("data", O_WRONLY);
    CHECK_EQUAL(lseek(reading, 3 * PAGE, SEEK_SET), 3 * PAGE);
    CHECK_EQUAL(lseek(both, 1000000, SEEK_SET), 1000000);
    freeze_here();
    CHECK_EQUAL(lseek(reading, 0, SEEK_CUR), 3 * PAGE);
    CHECK_EQUAL(lseek(both, 0, SEEK_CUR), 1000000);
    CHECK_EQUAL(lseek(writing, 0, SEEK_CUR), 0);
    char page[PAGE];
    CHECK_EQUAL(read(reading, page, PAGE), PAGE);
    CHECK(filled(page, PAGE, 1 + 3 * PAGE / 8));
    CHECK_EQUAL(flags_of(reading) & O_ACCMODE, O_RDONLY);
    CHECK_EQUAL(flags_of(both) & O_ACCMODE, O_RDWR);
    CHECK_EQUAL(flags_of(writing) & O_ACCMODE, O_WRONLY);
    CHECK_EQUAL(fcntl(reading, F_GETFD), FD_CLOEXEC);
    CHECK_EQUAL(fcntl(both, F_GETFD), 0);
    CHECK_EQUAL(write(reading, page, 1), -1);
    CHECK_EQUAL(errno, EBADF);
    CHECK_EQUAL(pread(both, page, PAGE, 0), PAGE);
    CHECK(filled(page, PAGE, 1));
}

CASE(append, "a file opened with O_APPEND, O_CREAT, O_EXCL and O_TRUNC is not created or truncated again") {
    int fd = open("log", O_WRONLY | O_CREAT | O_EXCL | O_TRUNC | O_APPEND, 0640);
    CHECK(fd >= 0);
    CHECK_EQUAL(write(fd, "before\n", 7), 7);
    freeze_here();
    CHECK(flags_of(fd) & O_APPEND);
    CHECK_EQUAL(lseek(fd, 0, SEEK_SET), 0);
    CHECK_EQUAL(write(fd, "after\n", 6), 6);
    char text[14] = "";
    int reading = open("log", O_RDONLY);
    CHECK_EQUAL(read(reading, text, 13), 13);
    CHECK(strcmp(text, "before\nafter\n") == 0);
}

CASE(shared_offset, "descriptors made by dup share their offset; descriptors of a file that was opened twice do not") {
    int first = make_file("data", 4, 1), twin = dup(first), far = fcntl(first, F_DUPFD_CLOEXEC, 700);
    int other = open("data", O_RDWR);
    CHECK_EQUAL(far, 700);
    lseek(first, 100, SEEK_SET);
    freeze_here();
    CHECK_EQUAL(lseek(twin, 0, SEEK_CUR), 100);
    lseek(twin, 200, SEEK_SET);
    CHECK_EQUAL(lseek(first, 0, SEEK_CUR), 200);
    CHECK_EQUAL(lseek(far, 5, SEEK_CUR), 205);
    CHECK_EQUAL(lseek(first, 0, SEEK_CUR), 205);
    CHECK_EQUAL(lseek(other, 0, SEEK_CUR), 0);
    CHECK_EQUAL(fcntl(first, F_GETFD), FD_CLOEXEC);
    CHECK_EQUAL(fcntl(twin, F_GETFD), 0);
    CHECK_EQUAL(fcntl(far, F_GETFD), FD_CLOEXEC);
}

static int count_open(void) {
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

CASE(only_what_was_open, "only the descriptors that were open at the freeze are open in the copy") {
    CHECK(open("/dev/null", O_RDONLY) >= 0);
    int before = count_open();
    freeze_here(); // the runner lets each copy inherit one more descriptor, which thaw must close
    CHECK_EQUAL(count_open(), before);
}

CASE(folders, "an open folder can still be listed, searched and changed to") {
    CHECK_EQUAL(mkdir("folder", 0700), 0);
    close(make_file("folder/inside", 1, 1));
    int fd = open("folder", O_RDONLY | O_DIRECTORY | O_CLOEXEC), path_only = open("folder", O_PATH);
    DIR *listed = opendir("folder");
    CHECK(fd >= 0 && path_only >= 0 && listed);
    int names = readdir(listed) != NULL;
    freeze_here();
    while (readdir(listed))
        names++;
    CHECK_EQUAL(names, 3); // ., .. and inside
    CHECK_EQUAL(closedir(listed), 0);
    CHECK_EQUAL(faccessat(fd, "inside", R_OK, 0), 0);
    int inside = openat(path_only, "inside", O_RDONLY);
    CHECK(inside >= 0);
    CHECK(flags_of(path_only) & O_PATH);
    CHECK_EQUAL(fchdir(fd), 0);
    CHECK_EQUAL(access("inside", F_OK), 0);
}

CASE(devices, "/dev/null, /dev/zero, /dev/full and /dev/urandom are open in the copy") {
    int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY), full = open("/dev/full", O_WRONLY);
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    CHECK(null >= 0 && zero >= 0 && full >= 0 && random >= 0);
    freeze_here();
    char bytes[64];
    struct stat about;
    CHECK_EQUAL(fstat(null, &about), 0);
    CHECK(S_ISCHR(about.st_mode) && about.st_rdev == makedev(1, 3));
    CHECK_EQUAL(write(null, bytes, 64), 64);
    CHECK_EQUAL(read(null, bytes, 64), 0);
    memset(bytes, 1, 64);
    CHECK_EQUAL(read(zero, bytes, 64), 64);
    CHECK(zeros(bytes, 64));
    CHECK_EQUAL(write(full, bytes, 1), -1);
    CHECK_EQUAL(errno, ENOSPC);
    CHECK_EQUAL(read(random, bytes, 64), 64);
    CHECK(!zeros(bytes, 64));
}

CASE(deleted, "a file that was deleted while it was open keeps its contents, size and offset; each copy has its own") {
    int fd = make_file("temporary", 5, 1), twin = dup(fd);
    CHECK_EQUAL(lseek(fd, 2 * PAGE, SEEK_SET), 2 * PAGE);
    CHECK_EQUAL(ftruncate(fd, 5 * PAGE + 10), 0);
    CHECK_EQUAL(unlink("temporary"), 0);
    int unnamed = open(".", O_RDWR | O_TMPFILE | O_EXCL | O_NOFOLLOW, 0600); // as Python's TemporaryFile
    CHECK(unnamed < 0 || write(unnamed, "unnamed", 7) == 7);
    freeze_here();
    char page[PAGE];
    struct stat about;
    CHECK_EQUAL(fstat(fd, &about), 0);
    CHECK_EQUAL(about.st_size, 5 * PAGE + 10);
    CHECK_EQUAL(read(fd, page, PAGE), PAGE);
    CHECK(filled(page, PAGE, 1 + 2 * PAGE / 8));
    CHECK_EQUAL(lseek(twin, 0, SEEK_CUR), 3 * PAGE);
    CHECK_EQUAL(write(twin, "own", 3), 3);
    CHECK_EQUAL(pread(fd, page, 3, 3 * PAGE), 3);
    CHECK_EQUAL(memcmp(page, "own", 3), 0);
    CHECK(unnamed < 0 || (pread(unnamed, page, 8, 0) == 7 && memcmp(page, "unnamed", 7) == 0));
}

CASE(memory_files, "a memfd has its contents, offset, name and seals") {
    int fd = memfd_create("sealed one", MFD_CLOEXEC | MFD_ALLOW_SEALING), plain = memfd_create("plain", 0);
    CHECK_EQUAL(write(fd, "contents", 8), 8);
    CHECK_EQUAL(ftruncate(plain, 1000), 0);
    CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    lseek(fd, 4, SEEK_SET);
    freeze_here();
    char text[64] = "", name[64] = "";
    CHECK_EQUAL(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    CHECK_EQUAL(read(fd, text, 8), 4);
    CHECK(strcmp(text, "ents") == 0);
    CHECK_EQUAL(write(fd, "x", 1), -1);
    CHECK_EQUAL(errno, EPERM);
    CHECK_EQUAL(ftruncate(fd, 100), -1);
    CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    snprintf(text, sizeof text, "/proc/self/fd/%d", fd);
    CHECK(readlink(text, name, sizeof name - 1) > 0);
    CHECK(strstr(name, "memfd:sealed one"));
    CHECK_EQUAL(lseek(plain, 0, SEEK_END), 1000);
    CHECK_EQUAL(fcntl(plain, F_GET_SEALS), F_SEAL_SEAL);
    CHECK_EQUAL(ftruncate(plain, 2000), 0);
}

CASE(streams, "stdio streams continue at the same position, including their buffered data") {
    FILE *out = fopen("out.txt", "w+"), *in = fopen("in.txt", "w+");
    CHECK(out && in);
    fputs("first line\nsecond line\n", in);
    rewind(in);
    char line[64];
    CHECK(fgets(line, sizeof line, in));
    fputs("buffered before, ", out);
    freeze_here();
    CHECK(fgets(line, sizeof line, in));
    CHECK(strcmp(line, "second line\n") == 0);
    fputs("written after", out);
    CHECK_EQUAL(fflush(out), 0);
    rewind(out);
    CHECK(fgets(line, sizeof line, out));
    CHECK(strcmp(line, "buffered before, written after") == 0);
}

CASE(grown_file, "a log that grew after the freeze is still the same log") {
    int fd = open("log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK_EQUAL(write(fd, "start", 5), 5);
    freeze_here();
    CHECK_EQUAL(write(fd, ".", 1), 1); // each copy makes the file longer for the next one
    CHECK(lseek(fd, 0, SEEK_END) >= 6);
}

CASE(own_folder_of_proc, "an open file of /proc/self is about the copy, not about the frozen process") {
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC), general = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    char text[8192] = "";
    CHECK(fd >= 0 && general >= 0);
    freeze_here();
    CHECK(pread(fd, text, sizeof text - 1, 0) > 0);
    const char *line = strstr(text, "\nPid:");
    CHECK(line && atoi(line + 5) == getpid());
    CHECK(pread(general, text, 100, 0) > 0);
    CHECK_EQUAL(memcmp(text, "MemTotal:", 9), 0);
}

CASE(standard_streams, "descriptors 0, 1 and 2 of a copy are those with which thaw was started") {
    struct stat before, after;
    CHECK_EQUAL(fstat(0, &before), 0);
    freeze_here();
    CHECK_EQUAL(fstat(0, &after), 0);
    CHECK_EQUAL(write(1, "", 0), 0);
    CHECK(!copy || S_ISFIFO(after.st_mode)); // the runner starts the original with /dev/null and thaw with a pipe
    CHECK(copy || before.st_ino == after.st_ino);
    char byte;
    CHECK_EQUAL(read(0, &byte, 1), 0);
}
