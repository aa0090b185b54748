// Runs in thaw's address space. The program thawd-thaw: its command line, its stages, and its errors.

#include "thaw.h"

#include <linux/mman.h>

#include "drop_capabilities.h"

struct thaw thaw_state;

struct stage {
    const char *name;
    void (*run)(struct thaw *t);
    const char *holds; // what is true after the stage
};

static const struct stage stages[] = {
    {"disk", stage_disk,
     "the copy's own folder is mounted at the frozen process's temporary folder, if --disk-at was given"},
    {"open", stage_open,
     "the image is open, belongs to this user alone, and its tables are in the zone: thaw's own addresses"},
    {"check", stage_check,
     "every number in the tables is in bounds; this machine can continue the frozen process, and its "
     "clocks do not go back"},
    {"aside", stage_aside, "arguments, environment variables and vDSO are in the zone; thaw runs on its own stack"},
    {"clear", stage_clear, "only the zone is mapped, and the vDSO if it could not be moved there"},
    {"memory", stage_memory, "all memory is at its old addresses, with its contents, protection and advice"},
    {"vdso", stage_vdso, "the vDSO is at the address that the frozen process uses"},
    {"process", stage_process, "brk, command line, working folder, umask and signal actions are restored"},
    {"descriptors", stage_descriptors, "only the frozen process's descriptors and the passed ones are open"},
    {"landing", stage_landing, "the frozen memory says that this is a copy, and where its arguments are"},
    {"rights", stage_rights, "the copy has at most the rights of the frozen process: users, groups, capabilities"},
    {"threads", stage_threads,
     "every thread has its new id; all threads but the main thread wait until it lets them continue"},
};

_Noreturn static void leave(int status) {
    for (;;)
        sys3(SYS_exit_group, status, 0, 0);
}

static void say(const char *text) {
    sys_write(2, text, text_bytes(text));
}

_Noreturn void thaw_refuse(const char *why, const char *detail) {
    char line[4600];
    struct writer out = text_writer(line, sizeof line);
    put_text(&out, "thawd: cannot thaw here: ");
    put_text(&out, why);
    put_text(&out, detail);
    put_text(&out, "\n");
    say(line);
    leave(EXIT_REFUSED);
}

_Noreturn void thaw_fail(const char *what, const char *detail, long error) {
    char line[4600];
    struct writer out = text_writer(line, sizeof line);
    put_text(&out, "thawd: thaw failed at ");
    put_text(&out, thaw_state.stage);
    put_text(&out, ": ");
    put_text(&out, what);
    put_text(&out, detail);
    put_text(&out, " (errno ");
    put_number(&out, (uint64_t)(error < 0 ? -error : error), 10);
    put_text(&out, ")\n");
    say(line);
    leave(EXIT_STAGE);
}

static uint64_t first_mask; // the signal mask with which this program was started

static const char help[] =
    "usage: thawd-thaw [OPTION]... IMAGE [ARGUMENT]...\n"
    "Become the process that was frozen into IMAGE. It gets the ARGUMENTs and this program's environment variables.\n"
    "  --fd OLD=NEW      pass the caller's descriptor NEW to the process as its descriptor OLD; may be repeated\n"
    "  --disk-at PATH    mount the copy's own folder at PATH, the frozen process's temporary folder; the other --disk\n"
    "                    options need --disk-at and --disk-own\n"
    "  --disk-own FOLDER the copy's own folder; with --disk-lower, it must contain the empty folders upper and work\n"
    "  --disk-lower PATH mount an overlay: the folder PATH has the initial contents and is never written to\n"
    "  --disk-tmp PATH   mount the same folder or overlay at PATH, too, for example at /tmp\n"
    "  --disk-code PATH  make the folder PATH read-only for the copy\n"
    "  --disk-task PATH  mount the folder PATH read-only at /var/task; in the same way --disk-runtime at /var/runtime\n"
    "                    and --disk-opt at /opt\n"
    "  --root FOLDER     make FOLDER the process's root, read-only; it sees the machine's /proc and a few devices, "
    "and\n"
    "                    its own folder at the path --disk-at in the root\n"
    "  --root-work PATH  the working folder, a path in the root\n"
    "  --root-bind FOLDER=PATH   mount FOLDER read-only at PATH in the root; may be repeated\n"
    "  --root-share FOLDER=PATH  the same, but writable\n"
    "  --root-make       only make what is missing in the root for these mounts\n"
    "  --environment     the process is an environment, not a template: if it gets a user namespace, it may have\n"
    "                    1,024 processes at most\n"
    "  --rights none     drop all capabilities after mounting the folders\n"
    "  --rights namespace  enter a user namespace, so that root's capabilities hold in that namespace only\n"
    "  --clocks-back     if the clocks that count from the machine's start are behind their values at the freeze, and\n"
    "                    no time namespace can be made, thaw nevertheless: waits last longer, and ages are negative\n"
    "  --run             IMAGE is a program: execute it with ARGUMENTs after mounting the folders\n"
    "  --status-fd FD    with --run: if IMAGE cannot be executed, write the error number to FD, four bytes\n"
    "  --try STAGE       only try whether the image can be thawed: exit with status 0 after STAGE\n"
    "  --stages          list the stages, and what is true after each\n"
    "For tests:\n"
    "  --die-at STAGE    be killed after STAGE\n"
    "  --no-procmap      do not use PROCMAP_QUERY, as on kernels before 6.11\n"
    "  --vdso-jump       leave the vDSO in its place, as on kernels that seal it\n"
    "  --vdso PATH       use the library PATH in place of the kernel's vDSO; none: as on kernels without a vDSO\n"
    "Exit status: 120 when the image cannot be thawed here (another machine or user, a missing or changed file),\n"
    "121 when a stage failed, 2 when an option is wrong, otherwise the process's own.\n";

_Noreturn static void list_stages(void) {
    char line[256];
    for (unsigned i = 0; i < sizeof stages / sizeof *stages; i++) {
        struct writer out = text_writer(line, sizeof line);
        put_text(&out, stages[i].name);
        put_text(&out, "\t");
        put_text(&out, stages[i].holds);
        put_text(&out, "\n");
        sys_write(1, line, text_bytes(line));
    }
    leave(0);
}

_Noreturn static void misused(const char *argument) {
    say("thawd-thaw: wrong usage: ");
    say(argument);
    say("\n");
    say(help);
    leave(2);
}

static void take_provided(struct thaw *t, const char *text) {
    const char *at = text;
    if (t->provided_count == MAX_PROVIDED)
        misused("more than 1024 descriptors");
    struct provided *provided = &t->provided[t->provided_count++];
    provided->number = (int32_t)take_number(&at, 10);
    if (at == text || *at++ != '=' || *at < '0' || *at > '9')
        misused(text);
    provided->from = (int32_t)take_number(&at, 10);
    if (*at)
        misused(text);
}

// Copies a text of the command line into thaw's data, because the command line is on the stack that the kernel made,
// and the stage `clear` unmaps that stack.
static void keep(char *to, uint64_t bytes, const char *text) {
    if (text_bytes(text) >= bytes)
        misused("a path or a name is too long");
    copy_bytes(to, text, text_bytes(text) + 1);
}

static void take_disk(struct thaw *t, const char *option, const char *path) {
    const char **to = text_equal(option, "--disk-at")        ? &t->disk.at
                      : text_equal(option, "--disk-own")     ? &t->disk.own
                      : text_equal(option, "--disk-lower")   ? &t->disk.lower
                      : text_equal(option, "--disk-tmp")     ? &t->disk.tmp
                      : text_equal(option, "--disk-code")    ? &t->disk.code
                      : text_equal(option, "--disk-task")    ? &t->disk.task
                      : text_equal(option, "--disk-runtime") ? &t->disk.runtime
                      : text_equal(option, "--disk-opt")     ? &t->disk.opt
                                                             : 0;
    if (!to || *path != '/')
        misused(to ? path : option);
    *to = path;
}

static void take_bind(struct thaw *t, char *text, int writable) {
    if (t->again) // the namespaces were entered before this program executed itself again
        return;
    char *at = text + text_bytes(text);
    while (at > text && *at != '=')
        at--;
    if (*text != '/' || at == text || at[1] != '/')
        misused(text);
    if (t->disk.bind_count == MOST_BINDS)
        misused("more than 128 folders for the root");
    *at = 0;
    t->disk.binds[t->disk.bind_count++] = (struct root_bind){text, at + 1, writable};
}

static void take_root(struct thaw *t, const char *option, char *value) {
    if (text_equal(option, "--root-bind") || text_equal(option, "--root-share"))
        take_bind(t, value, text_equal(option, "--root-share"));
    else if (*value == '/' && text_equal(option, "--root"))
        t->disk.root = value;
    else if (*value == '/' && text_equal(option, "--root-work"))
        t->disk.working = value;
    else
        misused(option);
}

static void take_rights(struct thaw *t, const char *text) {
    t->rights = text_equal(text, "none")        ? RIGHTS_NONE
                : text_equal(text, "namespace") ? RIGHTS_NAMESPACE
                                                : RIGHTS_FROZEN;
    if (t->rights == RIGHTS_FROZEN)
        misused(text);
}

// Reads the options; returns the index of the image's path.
static int take_options(struct thaw *t, int argc, char **argv) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *option = argv[i], *value = argv[i + 1];
        int has_value = i + 1 < argc;
        if (text_equal(option, "--help") || text_equal(option, "-h")) {
            sys_write(1, help, sizeof help - 1);
            leave(0);
        } else if (text_equal(option, "--stages")) {
            list_stages();
        } else if (text_equal(option, "--no-procmap")) {
            t->by_text = 1;
        } else if (text_equal(option, "--vdso-jump")) {
            t->vdso_jump = 1;
        } else if (text_equal(option, "--vdso") && has_value) {
            keep(t->vdso_file, sizeof t->vdso_file, argv[++i]);
        } else if (text_equal(option, "--clocks-back")) {
            t->clocks_back = 1;
        } else if (text_equal(option, "--run")) {
            t->run = 1;
        } else if (text_equal(option, "--status-fd") && has_value) {
            t->status_fd = (int)take_number(&value, 10);
            sys_fcntl(t->status_fd, 2 /* F_SETFD */, 1 /* FD_CLOEXEC */);
            i++;
        } else if (text_equal(option, "--environment")) {
            t->disk.is_environment = 1;
        } else if (text_equal(option, "--rights") && has_value) {
            take_rights(t, argv[++i]);
        } else if (text_equal(option, "--fd") && has_value) {
            take_provided(t, argv[++i]);
        } else if (text_equal(option, "--die-at") && has_value) {
            keep(t->die_at, sizeof t->die_at, argv[++i]);
        } else if (text_equal(option, "--try") && has_value) {
            keep(t->end_at, sizeof t->end_at, argv[++i]);
        } else if (text_equal(option, "--root-make")) {
            t->disk.make_places = 1;
        } else if (text_begins(option, "--root") && has_value) {
            take_root(t, option, argv[++i]);
        } else if (text_begins(option, "--disk-") && has_value) {
            take_disk(t, option, argv[++i]);
        } else if (text_equal(option, "--again") && has_value) {
            t->again = (int)take_number(&value, 10);
            if (*value++ == ':')
                t->image_fd = (int)take_number(&value, 10);
            i++;
        } else {
            misused(option);
        }
    }
    if (i >= argc)
        misused("IMAGE is missing");
    if (!t->disk.at != !t->disk.own ||
        ((t->disk.lower || t->disk.tmp || t->disk.code || t->disk.task || t->disk.runtime || t->disk.opt) &&
         !t->disk.at))
        misused("--disk-at and --disk-own must be given together, and other --disk options only with them");
    if (t->disk.root ? t->disk.tmp || t->disk.code || t->disk.task || t->disk.runtime || t->disk.opt
                     : t->disk.working || t->disk.bind_count || t->disk.make_places)
        misused("--root-work, --root-bind, --root-share and --root-make need --root, with which --disk-at is a path in "
                "the root; other --disk options cannot be used with --root");
    return i;
}

// Executes the program of --run, with the signal mask that this one was started with.
_Noreturn static void execute(struct thaw *t) {
    char **argv = t->envp - 1 - t->argument_count - 1;
    sys6(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, (long)&first_mask, 0, sizeof first_mask, 0, 0);
    long result = t->rights == RIGHTS_NONE ? drop_capabilities() : 0;
    if (result)
        thaw_fail("capabilities cannot be dropped", "", result);
    result = sys3(SYS_execve, (long)argv[0], (long)argv, (long)t->envp);
    const int32_t error = (int32_t)-result;
    if (t->status_fd)
        sys_write(t->status_fd, &error, sizeof error);
    thaw_fail("the program cannot be executed: ", argv[0], result);
}

static void run_stages(void *argument) {
    struct thaw *t = argument;
    for (unsigned i = 0; i < sizeof stages / sizeof *stages; i++) {
        t->stage = stages[i].name;
        stages[i].run(t);
        if (text_equal(t->die_at, stages[i].name))
            sys3(SYS_kill, sys_getpid(), 9, 0);
        if (text_equal(t->end_at, stages[i].name))
            leave(0);
        if (t->run && text_equal(stages[i].name, "disk"))
            execute(t);
    }
    thaw_resume(t);
}

// The stage `clear` unmaps the stack that the kernel made, but not this one.
static unsigned char own_stack[128 << 10] __attribute__((aligned(16)));

__attribute__((used)) _Noreturn static void begin(uint64_t *first) {
    struct thaw *t = &thaw_state;
    t->started_ns = monotonic_ns();
    // All signals are blocked until rt_sigreturn restores each thread's own mask, so that no thread of the copy takes a
    // signal meant for another.
    const uint64_t all = ~UINT64_C(0);
    sys6(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, (long)&all, (long)&first_mask, sizeof all, 0, 0);
    int argc = (int)first[0];
    t->argv = (char **)(first + 1);
    t->envp = t->argv + argc + 1;
    int at = take_options(t, argc, t->argv);
    keep(t->path, sizeof t->path, t->argv[at]);
    t->argument_count = (uint32_t)(argc - at - 1);
    switch_stack((uint64_t)own_stack + sizeof own_stack, run_stages, t);
}

__asm__(".globl _start\n"
        "_start:\n"
        "mov %rsp, %rdi\n"
        "and $-16, %rsp\n"
        "call begin\n"
        "ud2\n");
