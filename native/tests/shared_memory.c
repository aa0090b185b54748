// Runs in the process that is frozen. Tests memory that is mapped from files or shared. Copies share files; shared
// memory without a file is separate in each copy.

#include "harness.h"

#include <sys/stat.h>
#include <sys/wait.h>

static char *map_file(int fd, size_t pages, int protection, int flags, size_t first_page) {
    return map_pages(pages, protection, flags, fd, (off_t)(first_page * PAGE));
}

CASE(private_file, "a private mapping of a file shows the file, except for pages that were written") {
    int fd = make_file("data", 100, 1);
    char *clean = map_file(fd, 100, PROT_READ, MAP_PRIVATE, 0);
    char *part = map_file(fd, 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, 30);
    CHECK(filled(part, 20 * PAGE, 1 + 30 * PAGE / 8));
    fill(part + 5 * PAGE, 2 * PAGE, 77);
    part[10 * PAGE] = 'x';
    char *execute = map_file(fd, 3, PROT_READ | PROT_EXEC, MAP_PRIVATE, 50);
    close(fd);
    freeze_here();
    CHECK(filled(clean, 100 * PAGE, 1));
    CHECK(filled(execute, 3 * PAGE, 1 + 50 * PAGE / 8));
    CHECK(filled(part, 5 * PAGE, 1 + 30 * PAGE / 8));
    CHECK(filled(part + 5 * PAGE, 2 * PAGE, 77));
    CHECK_EQUAL(part[10 * PAGE], 'x');
    CHECK(filled(part + 10 * PAGE + 8, 10 * PAGE - 8, 2 + 40 * PAGE / 8));
    fill(part, 20 * PAGE, 5);
    CHECK(filled(part, 20 * PAGE, 5));
    CHECK(filled(clean, 100 * PAGE, 1));
}

CASE(end_of_file, "a mapping of a file that ends within a page shows zeros after the file's end") {
    int fd = make_file("data", 2, 1);
    CHECK_EQUAL(ftruncate(fd, PAGE + 100), 0);
    char *shown = map_file(fd, 4, PROT_READ, MAP_PRIVATE, 0);
    char *written = map_file(fd, 4, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    written[PAGE + 3000] = 'x';
    freeze_here();
    CHECK(filled(shown, PAGE + 96, 1));
    CHECK(zeros(shown + PAGE + 100, PAGE - 100));
    CHECK_EQUAL(written[PAGE + 3000], 'x');
    CHECK(filled(written, PAGE + 96, 1));
}

CASE(shared_read_only, "a shared read-only mapping of a file shows the file and is still shared") {
    close(make_file("data", 10, 1));
    int reading = open("data", O_RDONLY | O_CLOEXEC);
    char *shown = map_file(reading, 10, PROT_READ, MAP_SHARED, 0), wanted[64], line[512];
    close(reading);
    freeze_here();
    CHECK(filled(shown, 10 * PAGE, 1));
    snprintf(wanted, sizeof wanted, "%lx-%lx r--s 00000000 ", (uintptr_t)shown, (uintptr_t)shown + 10 * PAGE);
    FILE *maps = fopen("/proc/self/maps", "re");
    bool found = false;
    while (fgets(line, sizeof line, maps))
        found = found || (strncmp(line, wanted, strlen(wanted)) == 0 && strstr(line, "/data\n"));
    fclose(maps);
    CHECK(found);
}

CASE(shared_anonymous, "shared anonymous memory is shared with children of the copy, not with other copies") {
    char *memory = map_pages(50, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(memory, 30 * PAGE, 5);
    CHECK_EQUAL(mprotect(memory + 48 * PAGE, 2 * PAGE, PROT_NONE), 0);
    freeze_here();
    CHECK(filled(memory, 30 * PAGE, 5));
    CHECK(zeros(memory + 30 * PAGE, 18 * PAGE));
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fill(memory, 48 * PAGE, (uint64_t)getpid());
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK(filled(memory, 48 * PAGE, (uint64_t)child));
}

CASE(shared_in_parts, "parts of shared memory with different protections still share one memory object") {
    char *memory = map_pages(40, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill(memory, 40 * PAGE, 6);
    CHECK_EQUAL(mprotect(memory + 10 * PAGE, 10 * PAGE, PROT_READ), 0);
    CHECK_EQUAL(munmap(memory + 30 * PAGE, 2 * PAGE), 0);
    char *second = mremap(memory + 20 * PAGE, 0, 5 * PAGE, MREMAP_MAYMOVE); // a second view: mremap(2), old_size 0
    CHECK(second != MAP_FAILED);
    freeze_here();
    CHECK(filled(memory, 30 * PAGE, 6));
    CHECK(filled(memory + 32 * PAGE, 8 * PAGE, 6 + 32 * PAGE / 8));
    CHECK(filled(second, 5 * PAGE, 6 + 20 * PAGE / 8));
    fill(second, 5 * PAGE, 66);
    CHECK(filled(memory + 20 * PAGE, 5 * PAGE, 66));
}

CASE(memfd_twice, "a memfd that is mapped twice and open is one memory object in the copy") {
    int fd = memfd_create("twice", MFD_CLOEXEC);
    CHECK_EQUAL(ftruncate(fd, 20 * PAGE), 0);
    char *first = map_file(fd, 20, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    char *second = map_file(fd, 10, PROT_READ, MAP_SHARED, 10);
    char *own = map_file(fd, 20, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    fill(first, 20 * PAGE, 7);
    own[3 * PAGE] = 'o';
    freeze_here();
    CHECK(filled(first, 20 * PAGE, 7));
    CHECK(filled(second, 10 * PAGE, 7 + 10 * PAGE / 8));
    CHECK(own[3 * PAGE] == 'o' && filled(own, 3 * PAGE, 7));
    fill(first, 20 * PAGE, 70);
    CHECK(filled(second, 10 * PAGE, 70 + 10 * PAGE / 8));
    uint64_t mark = 555;
    CHECK_EQUAL(pwrite(fd, &mark, 8, 12 * PAGE), 8);
    CHECK_EQUAL(memcmp(first + 12 * PAGE, &mark, 8), 0);
    CHECK_EQUAL(memcmp(second + 2 * PAGE, &mark, 8), 0);
    CHECK(own[3 * PAGE] == 'o');
}

CASE(memfd_unopened, "a mapped memfd with a closed descriptor keeps its contents and stays shared") {
    int fd = memfd_create("closed", MFD_CLOEXEC);
    CHECK_EQUAL(ftruncate(fd, 8 * PAGE), 0);
    char *first = map_file(fd, 8, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    char *second = map_file(fd, 8, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    close(fd);
    fill(first, 8 * PAGE, 9);
    freeze_here();
    CHECK(filled(second, 8 * PAGE, 9));
    fill(second, 8 * PAGE, 10);
    CHECK(filled(first, 8 * PAGE, 10));
}

CASE(deleted_file, "a file that was deleted while it was mapped keeps its contents, both unchanged and written pages") {
    int fd = make_file("deleted", 30, 3);
    char *private = map_file(fd, 30, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    char *reading = map_file(fd, 10, PROT_READ, MAP_PRIVATE, 5);
    char *shared = map_file(fd, 30, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    CHECK_EQUAL(unlink("deleted"), 0);
    fill(private + 7 * PAGE, PAGE, 33);
    shared[20 * PAGE] = 's';
    freeze_here();
    CHECK(filled(private, 7 * PAGE, 3));
    CHECK(filled(private + 7 * PAGE, PAGE, 33));
    CHECK(filled(reading, 10 * PAGE, 3 + 5 * PAGE / 8));
    CHECK_EQUAL(shared[20 * PAGE], 's');
    CHECK(filled(shared, 20 * PAGE, 3));
    shared[PAGE] = 't';
    char byte = 0;
    CHECK_EQUAL(pread(fd, &byte, 1, PAGE), 1);
    CHECK_EQUAL(byte, 't');
    CHECK(filled(private, 7 * PAGE, 3 + 0) || private[PAGE] == 't');
}

CASE(replaced_file,
     "a mapped file that was replaced by another file of its name, as in an upgrade, keeps its old contents") {
    int fd = make_file("library", 10, 1);
    char *memory = map_file(fd, 10, PROT_READ, MAP_PRIVATE, 0);
    close(fd);
    close(make_file("newer", 10, 2));
    CHECK_EQUAL(rename("newer", "library"), 0);
    freeze_here();
    CHECK(filled(memory, 10 * PAGE, 1));
}

CASE(odd_names, "files with spaces, newlines and unusual bytes in their names are mapped and opened again") {
    static const char *const names[] = {"with space", "with\nline end", "tail (deleted)", "back\\012slash", "\xff\xfe"};
    char *memory[5], page[PAGE];
    int files[5];
    for (int i = 0; i < 5; i++) {
        files[i] = make_file(names[i], 3, (uint64_t)i);
        memory[i] = map_file(files[i], 3, PROT_READ, MAP_PRIVATE, 0);
    }
    freeze_here();
    for (int i = 0; i < 5; i++) {
        CHECK(filled(memory[i], 3 * PAGE, (uint64_t)i));
        CHECK_EQUAL(pread(files[i], page, PAGE, PAGE), PAGE);
        CHECK(filled(page, PAGE, (uint64_t)i + PAGE / 8));
    }
}

CASE(zero_device, "memory of /dev/zero is anonymous memory, both private and shared") {
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    char *private = map_file(fd, 10, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
    char *shared = map_file(fd, 10, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    close(fd);
    fill(private, 3 * PAGE, 1);
    fill(shared, 3 * PAGE, 2);
    freeze_here();
    CHECK(filled(private, 3 * PAGE, 1) && zeros(private + 3 * PAGE, 7 * PAGE));
    CHECK(filled(shared, 3 * PAGE, 2) && zeros(shared + 3 * PAGE, 7 * PAGE));
    fill(private, 10 * PAGE, 3);
    fill(shared, 10 * PAGE, 4);
}

CASE(same_file_many_times, "neighbouring mappings of one file, out of order and overlapping, are all unchanged") {
    int fd = make_file("data", 16, 1);
    char *area = map_pages(20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const int page_shown[] = {3, 4, 5, 0, 9, 8, 7, 15, 3, 3};
    for (size_t i = 0; i < 10; i++)
        CHECK(mmap(area + i * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd,
                   (off_t)((size_t)page_shown[i] * PAGE)) != MAP_FAILED);
    area[8 * PAGE] = 'w';
    freeze_here();
    for (size_t i = 0; i < 10; i++)
        if (i != 8)
            CHECK(filled(area + i * PAGE, PAGE, 1 + (uint64_t)page_shown[i] * PAGE / 8));
    CHECK(area[8 * PAGE] == 'w' && filled(area + 8 * PAGE + 8, PAGE - 8, 2 + 3 * PAGE / 8));
}
