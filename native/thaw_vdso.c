// Runs in thaw's address space. Finds this process's vDSO, and lets the frozen process's code use it where it cannot be
// moved to the frozen vDSO's addresses, or is another one.
//
// The frozen code calls functions of the frozen vDSO by their addresses. So the frozen vDSO's code is put at its old
// addresses, and each of its functions is overwritten by a jump to the function with the same name in this process's
// vDSO. If there is none, the function makes the system call itself, as the C library does without a vDSO. If no thread
// was frozen inside the vDSO (IMAGE_INSIDE_VDSO), nothing else of its code runs, and its data is not needed.

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mman.h>
#include <sys/stat.h>

#include "thaw.h"

// The functions of a vDSO. All sizes and offsets in it are checked before they are used.
struct functions {
    const unsigned char *base;
    uint64_t bytes;
    const Elf64_Sym *symbols;
    uint64_t count;
    const char *names;
    uint64_t names_bytes;
};

// The system calls behind functions of the vDSO. Such a function takes the arguments of the system call, and returns
// what it returns.
static const struct {
    const char *name;
    int number;
} calls[] = {
    {"clock_gettime", SYS_clock_gettime},
    {"clock_getres", SYS_clock_getres},
    {"gettimeofday", SYS_gettimeofday},
    {"time", SYS_time},
    {"getcpu", SYS_getcpu},
};

// For tests: maps a library that stands for a kernel's vDSO with other code.
static void map_file(struct thaw *t) {
    struct stat status;
    if (text_equal(t->vdso_file, "none"))
        return;
    int fd = sys_open(t->vdso_file, O_RDONLY | O_CLOEXEC, 0);
    long result = fd < 0 ? fd : sys3(SYS_fstat, fd, (long)&status, 0);
    if (!result)
        result = sys_mmap(0, (uint64_t)status.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    if (SYS_FAILED(result))
        thaw_fail("the library that stands for the vDSO cannot be mapped: ", t->vdso_file, result);
    sys_close(fd);
    t->vdso.code_start = (uint64_t)result;
    t->vdso.code_bytes = ((uint64_t)status.st_size + IMAGE_PAGE - 1) / IMAGE_PAGE * IMAGE_PAGE;
}

static void take_line(struct vdso_parts *vdso, const char *line) {
    const char *at = line;
    uint64_t start = take_number(&at, 16);
    at++;
    uint64_t stop = take_number(&at, 16);
    while (*at && *at != '[')
        at++;
    if (text_equal(at, "[vdso]")) {
        vdso->code_start = start;
        vdso->code_bytes = stop - start;
    } else if (text_begins(at, "[vvar")) {
        if (!vdso->vvar_bytes)
            vdso->vvar_start = start;
        vdso->vvar_bytes = stop - vdso->vvar_start;
    }
}

// Reads /proc/self/maps, which is short for this program. A kernel may have no vDSO.
void vdso_find(struct thaw *t) {
    static char maps[16384];
    if (*t->vdso_file) {
        map_file(t);
        return;
    }
    long bytes = read_text_file("/proc/self/maps", maps, sizeof maps);
    if (bytes < 0)
        thaw_fail("/proc/self/maps cannot be read", "", bytes);
    for (char *line = maps; *line;) {
        char *end = line;
        while (*end && *end != '\n')
            end++;
        int more = *end == '\n';
        *end = 0;
        take_line(&t->vdso, line);
        line = end + more;
    }
    if (!t->vdso.code_bytes)
        t->vdso = (struct vdso_parts){0};
}

static int is_inside(const struct functions *in, uint64_t offset, uint64_t bytes) {
    return offset <= in->bytes && bytes <= in->bytes - offset;
}

// Finds the table of functions of the vDSO at `base`; `to->count` is 0 if it has none.
static void read_functions(const void *base, uint64_t bytes, struct functions *to) {
    *to = (struct functions){.base = base, .bytes = bytes};
    const Elf64_Ehdr *elf = base;
    if (!is_inside(to, 0, sizeof *elf) || !is_inside(to, elf->e_shoff, (uint64_t)elf->e_shnum * sizeof(Elf64_Shdr)))
        return;
    const Elf64_Shdr *sections = (const void *)(to->base + elf->e_shoff);
    for (int i = 0; i < elf->e_shnum; i++) {
        const Elf64_Shdr *symbols = &sections[i];
        if (symbols->sh_type != SHT_DYNSYM || symbols->sh_link >= elf->e_shnum)
            continue;
        const Elf64_Shdr *names = &sections[symbols->sh_link];
        if (!is_inside(to, symbols->sh_offset, symbols->sh_size) || !is_inside(to, names->sh_offset, names->sh_size) ||
            !names->sh_size || to->base[names->sh_offset + names->sh_size - 1])
            return;
        to->symbols = (const void *)(to->base + symbols->sh_offset);
        to->count = symbols->sh_size / sizeof *to->symbols;
        to->names = (const char *)to->base + names->sh_offset;
        to->names_bytes = names->sh_size;
    }
}

static int is_function(const struct functions *in, const Elf64_Sym *symbol) {
    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_shndx != SHN_UNDEF &&
           symbol->st_name < in->names_bytes && is_inside(in, symbol->st_value, symbol->st_size);
}

// A function has two names, such as __vdso_time and time.
static const char *name_of(const struct functions *in, const Elf64_Sym *symbol) {
    const char *name = in->names + symbol->st_name;
    return name + (text_begins(name, "__vdso_") ? sizeof "__vdso_" - 1 : 0);
}

// The address of the function with this name; 0 if there is none.
static uint64_t find_function(const struct functions *in, const char *name) {
    for (uint64_t i = 0; i < in->count; i++)
        if (is_function(in, &in->symbols[i]) && text_equal(name_of(in, &in->symbols[i]), name))
            return (uint64_t)in->base + in->symbols[i].st_value;
    return 0;
}

static int call_of(const char *name) {
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        if (text_equal(calls[i].name, name))
            return calls[i].number;
    return -1;
}

static void redirect(const struct functions *frozen, const Elf64_Sym *symbol, const struct functions *running) {
    // SAFETY: `frozen->base` is a private copy of the frozen vDSO's code, which is writable.
    unsigned char *code = (unsigned char *)(uintptr_t)frozen->base + symbol->st_value;
    const char *name = name_of(frozen, symbol);
    uint64_t target = find_function(running, name);
    int is_random = !target && text_equal(name, "getrandom");
    if (symbol->st_size < (is_random ? RANDOM_CALL_BYTES : target ? JUMP_BYTES : CALL_BYTES))
        thaw_refuse("a function of the frozen vDSO is too short to be replaced: ", name);
    if (target)
        write_jump(code, target);
    else if (is_random)
        write_random_call(code);
    else
        write_call(code, call_of(name));
}

void vdso_redirect(struct thaw *t) {
    uint64_t bytes = t->header->process.vdso_bytes, redirected = 0;
    long at = sys_mmap(t->header->process.vdso_start, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (SYS_FAILED(at))
        thaw_fail("the vDSO's copy cannot be mapped", "", at);
    copy_bytes((void *)at, SECTION(t, char, SECTION_VDSO), bytes);
    struct functions frozen, running;
    read_functions(SECTION(t, char, SECTION_VDSO), bytes, &frozen);
    read_functions((const void *)t->vdso.code_start, t->vdso.code_bytes, &running);
    frozen.base = (const unsigned char *)at; // the tables are read from the image, because a function may overlap them
    for (uint64_t i = 0; i < frozen.count; i++)
        if (is_function(&frozen, &frozen.symbols[i])) {
            redirect(&frozen, &frozen.symbols[i], &running);
            redirected++;
        }
    if (!redirected)
        thaw_refuse("the frozen vDSO has no table of functions", "");
    sys_mprotect((uint64_t)at, bytes, PROT_READ | PROT_EXEC);
}
