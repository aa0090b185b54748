// Runs in freeze and in thaw. Everything that is specific to x86-64; another architecture needs a file like this.

#ifndef THAWD_ARCH_X86_64_H
#define THAWD_ARCH_X86_64_H

#include <stdint.h>

#define ARCHITECTURE IMAGE_ARCHITECTURE_X86_64
// End of the addresses that user space can use. It is the same with four and five levels of page tables, unless a
// program requests higher addresses.
#define USER_SPACE_END UINT64_C(0x7ffffffff000)

static inline long system_call(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

// The CPUID instruction: `leaf` and `subleaf` in, EAX EBX ECX EDX out.
static inline void cpu_id(uint32_t leaf, uint32_t subleaf, uint32_t out[4]) {
    __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3]) : "a"(leaf), "c"(subleaf));
}

// The register XCR0. Its bits say which sets of registers the kernel saves.
static inline uint64_t extended_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static inline void copy_bytes(void *to, const void *from, uint64_t bytes) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

static inline void clear_bytes(void *to, uint64_t bytes) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0) : "memory");
}

// Writes code that jumps to `target` from anywhere and changes no register: jmp *0(%rip), followed by the address.
#define JUMP_BYTES 14
static inline void write_jump(unsigned char code[JUMP_BYTES], uint64_t target) {
    static const unsigned char jump[6] = {0xff, 0x25, 0, 0, 0, 0};
    copy_bytes(code, jump, sizeof jump);
    copy_bytes(code + sizeof jump, &target, sizeof target);
}

// Writes a function that makes the system call `number` with its own arguments; with -1, one that returns -ENOSYS.
#define CALL_BYTES 8
static inline void write_call(unsigned char code[CALL_BYTES], int number) {
    static const unsigned char call[CALL_BYTES] = {0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3}; // mov $number, %eax; syscall
    static const unsigned char none[CALL_BYTES] = {0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3}; // mov $-38, %rax
    copy_bytes(code, number < 0 ? none : call, sizeof call);
    if (number >= 0)
        copy_bytes(code + 1, &number, sizeof number);
}

// Writes a function that makes the system call getrandom, as __vdso_getrandom does if it has no state to work with. A
// caller asks __vdso_getrandom for the size of that state with -1 as the fifth argument; the answer is then -ENOSYS.
// Source: the kernel's lib/vdso/getrandom.c.
#define RANDOM_CALL_BYTES 22
static inline void write_random_call(unsigned char code[RANDOM_CALL_BYTES]) {
    static const unsigned char call[RANDOM_CALL_BYTES] = {
        0x49, 0x83, 0xf8, 0xff,                         // cmp $-1, %r8
        0x74, 0x08,                                     // je 1f
        0xb8, 0x3e, 0x01, 0,    0,                      // mov $318, %eax
        0x0f, 0x05, 0xc3,                               // syscall; ret
        0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3, // 1: mov $-38, %rax; ret
    };
    copy_bytes(code, call, sizeof call);
}

// Continues the thread at the point where a signal interrupted it; `context` is the ucontext in its signal frame.
// Source: arch/x86/kernel/signal_64.c, rt_sigreturn.
_Noreturn static inline void resume_context(uint64_t context) {
    __asm__ volatile("mov %0, %%rsp\n\tmov $15, %%eax\n\tsyscall\n\tud2" : : "r"(context) : "memory");
    __builtin_unreachable();
}

// Calls `enter(argument)` on another stack that ends at `stack`, a multiple of 16; does not return.
_Noreturn static inline void switch_stack(uint64_t stack, void (*enter)(void *), void *argument) {
    __asm__ volatile("mov %0, %%rsp\n\txor %%ebp, %%ebp\n\tcall *%1\n\tud2"
                     :
                     : "r"(stack), "r"(enter), "D"(argument)
                     : "memory");
    __builtin_unreachable();
}

// Starts a thread by clone(2) that calls `enter(argument)` on its own stack; returns the thread's id, or -errno.
static inline long clone_thread(uint64_t flags, uint64_t stack, int32_t *parent_tid, int32_t *child_tid, uint64_t tls,
                                void (*enter)(void *), void *argument) {
    long result;
    uint64_t *top = (uint64_t *)stack;
    top[-1] = (uint64_t)argument;
    top[-2] = (uint64_t)enter;
    register long r10 __asm__("r10") = (long)child_tid;
    register long r8 __asm__("r8") = (long)tls;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "pop %%rax\n\t"
                     "pop %%rdi\n\t"
                     "call *%%rax\n\t"
                     "ud2\n"
                     "1:"
                     : "=a"(result)
                     : "a"(56L), "D"(flags), "S"(top - 2), "d"(parent_tid), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

// A process must request large registers (AMX tiles) before it uses them. The first function returns those that this
// process has requested. The second requests those in `bits`; it returns 0, or the number of the first bit that was not
// granted. Source: Documentation/arch/x86/xstate.rst.
static inline uint64_t register_permissions(void) {
    uint64_t bits = 0;
    long result = system_call(158 /* arch_prctl */, 0x1022, (long)&bits, 0, 0, 0, 0);
    return result < 0 ? 0 : bits;
}
static inline int ask_for_registers(uint64_t bits) {
    uint64_t had = register_permissions();
    for (int i = 0; i < 64; i++)
        if (bits >> i & 1 && !(had >> i & 1) && system_call(158, 0x1023, i, 0, 0, 0, 0) < 0)
            return i;
    return 0;
}

enum { ARCH_SET_GS_CODE = 0x1001, ARCH_SET_FS_CODE = 0x1002, ARCH_GET_FS_CODE = 0x1003, ARCH_GET_GS_CODE = 0x1004 };

#endif
