// Runs in the process that is frozen. Tests anonymous memory of every kind: contents, protection and holes.

#include "harness.h"

#include <setjmp.h>
#include <sys/wait.h>

static sigjmp_buf before_fault;
static volatile int fault_code;

static void note_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    fault_code = info->si_code;
    siglongjmp(before_fault, number);
}

static void catch_faults(void) {
    struct sigaction action = {.sa_sigaction = note_fault, .sa_flags = SA_SIGINFO};
    CHECK_EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
    CHECK_EQUAL(sigaction(SIGBUS, &action, NULL), 0);
}

// These two functions return 0 if `at` can be read, or written, and otherwise the signal that the attempt raised.
static int fault_of_read(const volatile char *at) {
    int number = sigsetjmp(before_fault, 1);
    if (number == 0)
        (void)*at;
    return number;
}

static int fault_of_write(volatile char *at) {
    int number = sigsetjmp(before_fault, 1);
    if (number == 0)
        *at = *at;
    return number;
}

// Finds the protection and the end of the mapping at `address` in /proc/self/maps.
static bool mapping_at(const void *address, char protection[5], uint64_t *end) {
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps);
    char line[512];
    unsigned long start, stop;
    bool found = false;
    while (!found && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &start, &stop, protection) == 3)
            found = start <= (uintptr_t)address && (uintptr_t)address < stop;
    fclose(maps);
    *end = stop;
    return found;
}

CASE(protections, "pages keep their protection and contents, also without read permission") {
    static const int protections[] = {PROT_READ | PROT_WRITE,
                                      PROT_READ,
                                      PROT_NONE,
                                      PROT_READ | PROT_EXEC,
                                      PROT_WRITE,
                                      PROT_EXEC,
                                      PROT_READ | PROT_WRITE | PROT_EXEC};
    static const char *const names[] = {"rw-p", "r--p", "---p", "r-xp", "-w-p", "--xp", "rwxp"};
    char *memory[7], seen[5];
    uint64_t end;
    catch_faults();
    for (int i = 0; i < 7; i++) {
        memory[i] = map_anonymous(3);
        fill(memory[i], 3 * PAGE, (uint64_t)i);
        CHECK_EQUAL(mprotect(memory[i], 3 * PAGE, protections[i]), 0);
    }
    freeze_here();
    for (int i = 0; i < 7; i++) {
        CHECK(mapping_at(memory[i], seen, &end));
        CHECK(strcmp(seen, names[i]) == 0);
        CHECK_EQUAL(fault_of_write(memory[i]) == 0, (protections[i] & PROT_WRITE) != 0);
    }
    CHECK_EQUAL(fault_of_read(memory[2]), SIGSEGV);
    CHECK_EQUAL(fault_code, SEGV_ACCERR);
    for (int i = 0; i < 7; i++) {
        CHECK_EQUAL(mprotect(memory[i], 3 * PAGE, PROT_READ), 0);
        CHECK(filled(memory[i], 3 * PAGE, (uint64_t)i));
    }
}

CASE(holes, "guard pages, gaps between mappings and unused pages are at the same addresses") {
    char *memory = map_anonymous(64), seen[5];
    uint64_t end;
    catch_faults();
    for (int i = 0; i < 64; i += 4)
        fill(memory + (size_t)i * PAGE, PAGE, (uint64_t)i);
    CHECK_EQUAL(mprotect(memory + 8 * PAGE, PAGE, PROT_NONE), 0);
    CHECK_EQUAL(mprotect(memory + 21 * PAGE, 2 * PAGE, PROT_NONE), 0);
    CHECK_EQUAL(munmap(memory + 40 * PAGE, 3 * PAGE), 0);
    freeze_here();
    CHECK_EQUAL(fault_of_read(memory + 8 * PAGE), SIGSEGV);
    CHECK_EQUAL(fault_of_read(memory + 22 * PAGE), SIGSEGV);
    CHECK_EQUAL(fault_code, SEGV_ACCERR);
    CHECK_EQUAL(fault_of_read(memory + 40 * PAGE), SIGSEGV);
    CHECK_EQUAL(fault_code, SEGV_MAPERR);
    CHECK(!mapping_at(memory + 42 * PAGE, seen, &end));
    CHECK_EQUAL(mprotect(memory + 8 * PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
    CHECK_EQUAL(mprotect(memory + 21 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE), 0);
    for (int i = 0; i < 64; i++) {
        char *page = memory + (size_t)i * PAGE;
        if (i >= 40 && i < 43)
            continue;
        CHECK(i % 4 == 0 ? filled(page, PAGE, (uint64_t)i) : zeros(page, PAGE));
        CHECK_EQUAL(fault_of_write(page), 0);
    }
}

CASE(zero_pages, "pages that were read but never written, or written with zeros, are zeros") {
    char *memory = map_anonymous(1024);
    size_t sum = 0;
    for (int i = 0; i < 1024; i += 2)
        sum += (unsigned char)memory[(size_t)i * PAGE];
    memset(memory + 100 * PAGE, 0, 50 * PAGE);
    memory[512 * PAGE] = 1;
    freeze_here();
    CHECK_EQUAL(sum, 0);
    CHECK_EQUAL(memory[512 * PAGE], 1);
    memory[512 * PAGE] = 0;
    CHECK(zeros(memory, 1024 * PAGE));
    memset(memory, 7, 1024 * PAGE);
}

CASE(reservation, "a reservation of 256 GiB takes no memory, and its used part keeps its contents") {
    size_t bytes = 256ul << 30;
    char *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    char *middle = memory + bytes / 2;
    CHECK_EQUAL(mprotect(middle, 16 * PAGE, PROT_READ | PROT_WRITE), 0);
    fill(middle, 16 * PAGE, 3);
    char *sparse = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(sparse != MAP_FAILED);
    for (size_t i = 0; i < 64; i++)
        fill(sparse + i * (bytes / 64), PAGE, i);
    freeze_here();
    CHECK(!copy || report.restore_ns < 5000000000u);
    CHECK(filled(middle, 16 * PAGE, 3));
    for (size_t i = 0; i < 64; i++)
        CHECK(filled(sparse + i * (bytes / 64), PAGE, i));
    CHECK(zeros(sparse + PAGE, 64 * PAGE));
    CHECK_EQUAL(mprotect(memory, PAGE, PROT_READ | PROT_WRITE), 0);
    CHECK(zeros(memory, PAGE));
    memory[0] = 1;
}

CASE(code, "code made at run time runs, both in writable memory and in memory that is only executable and readable") {
    static const unsigned char add_five[] = {0x8d, 0x47, 0x05, 0xc3}; // lea 5(%rdi), %eax; ret
    char *writable = map_pages(1, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *sealed = map_anonymous(1);
    memcpy(writable, add_five, sizeof add_five);
    memcpy(sealed, add_five, sizeof add_five);
    CHECK_EQUAL(mprotect(sealed, PAGE, PROT_READ | PROT_EXEC), 0);
    freeze_here();
    CHECK_EQUAL(((int (*)(int))writable)(4), 9);
    CHECK_EQUAL(((int (*)(int))sealed)(5), 10);
    writable[2] = 6;
    CHECK_EQUAL(((int (*)(int))writable)(4), 10);
}

CASE(many, "4,000 mappings of alternating protection are all restored") {
    size_t pages = 4000;
    char *memory = map_anonymous(pages), seen[5];
    uint64_t end;
    for (size_t i = 0; i < pages; i++) {
        fill(memory + i * PAGE, PAGE, i);
        if (i % 2)
            CHECK_EQUAL(mprotect(memory + i * PAGE, PAGE, PROT_READ), 0);
    }
    freeze_here();
    for (size_t i = 0; i < pages; i++)
        CHECK(filled(memory + i * PAGE, PAGE, i));
    CHECK(mapping_at(memory + 1001 * PAGE, seen, &end));
    CHECK(strcmp(seen, "r--p") == 0 && end == (uintptr_t)memory + 1002 * PAGE);
}

CASE(large_pages, "memory of transparent huge pages, aligned and not, keeps its contents") {
    size_t bytes = 24 * MIB;
    char *memory = map_anonymous(bytes / PAGE + 512);
    char *aligned = (char *)(((uintptr_t)memory + 2 * MIB - 1) & ~(2 * MIB - 1));
    madvise(memory, bytes + 2 * MIB, MADV_HUGEPAGE);
    fill(aligned, bytes, 1);
    memset(aligned + 6 * MIB, 0, 2 * MIB);
    CHECK_EQUAL(mprotect(aligned + 3 * MIB, PAGE, PROT_READ), 0);
    freeze_here();
    CHECK(filled(aligned, 6 * MIB, 1));
    CHECK(zeros(aligned + 6 * MIB, 2 * MIB));
    CHECK(filled(aligned + 8 * MIB, bytes - 8 * MIB, 1 + MIB));
    fill(aligned + 8 * MIB, bytes - 8 * MIB, 5);
    CHECK(filled(aligned + 8 * MIB, bytes - 8 * MIB, 5));
}

CASE(written_in_fork, "a child sees what the copy wrote before the fork, and not what the copy writes after it") {
    char *memory = map_anonymous(2000);
    fill(memory, 2000 * PAGE, 8);
    freeze_here();
    fill(memory, 10 * PAGE, 9);
    int ends[2], status;
    CHECK_EQUAL(pipe(ends), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char go;
        bool good = read(ends[0], &go, 1) == 1 && filled(memory, 10 * PAGE, 9) &&
                    filled(memory + 10 * PAGE, 1990 * PAGE, 8 + 10 * PAGE / 8);
        memset(memory, 1, 2000 * PAGE);
        _exit(good ? 0 : 1);
    }
    fill(memory, 20 * PAGE, 10);
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK(filled(memory, 20 * PAGE, 10));
    CHECK(filled(memory + 20 * PAGE, 1980 * PAGE, 8 + 20 * PAGE / 8));
}

CASE(unmapped_and_mapped_anew, "memory from before the freeze can be unmapped; new memory at its address is zeros") {
    char *memory = map_anonymous(300);
    fill(memory, 300 * PAGE, 2);
    freeze_here();
    CHECK_EQUAL(munmap(memory + 100 * PAGE, 100 * PAGE), 0);
    catch_faults();
    CHECK_EQUAL(fault_of_read(memory + 150 * PAGE), SIGSEGV);
    CHECK(filled(memory + 200 * PAGE, 100 * PAGE, 2 + 200 * PAGE / 8));
    char *again =
        mmap(memory + 50 * PAGE, 200 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(again == memory + 50 * PAGE);
    CHECK(zeros(again, 200 * PAGE));
    CHECK(filled(memory, 50 * PAGE, 2));
    CHECK(filled(memory + 250 * PAGE, 50 * PAGE, 2 + 250 * PAGE / 8));
    CHECK_EQUAL(mprotect(memory, 300 * PAGE, PROT_READ), 0);
    CHECK_EQUAL(fault_of_write(memory), SIGSEGV);
}

CASE(break_area, "the heap of brk keeps its contents, grows by pages of zeros and shrinks") {
    char *start = sbrk(0);
    CHECK(sbrk(64 * PAGE) == start);
    start = (char *)(((uintptr_t)start + 15) & ~15ul);
    fill(start, 60 * PAGE, 4);
    freeze_here(); // calls malloc, which uses brk
    char *end = sbrk(0);
    CHECK(filled(start, 60 * PAGE, 4));
    CHECK(sbrk(400 * PAGE) == end);
    CHECK(zeros(end, 400 * PAGE));
    fill(end, 400 * PAGE, 6);
    CHECK(sbrk(-400l * (long)PAGE) == end + 400 * PAGE);
    CHECK(sbrk(0) == end);
    CHECK(sbrk(10 * PAGE) == end);
    char *whole = (char *)(((uintptr_t)end + PAGE - 1) & ~(PAGE - 1));
    CHECK(zeros(whole, 9 * PAGE));
    CHECK(filled(start, 60 * PAGE, 4));
}
