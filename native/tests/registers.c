// Runs in the process that is frozen. Tests registers of threads that are frozen while they run. A loop in assembler
// keeps a value in each register, and stores all of them when it is stopped.

#include "harness.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <fenv.h>
#include <xmmintrin.h>

_Atomic unsigned char spinning, spin_on; // named in the assembler below

#define SPIN "movb $1, spinning(%%rip)\n1: pause\ncmpb $0, spin_on(%%rip)\njne 1b\n"
#define EACH_OF_16 ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
#define EACH_OF_32 ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
#define LOW_VECTORS                                                                                                    \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",         \
        "xmm13", "xmm14", "xmm15"

struct vectors {
    _Alignas(64) unsigned char registers[32][64];
    uint64_t masks[8];
};

static void spin_sse(const struct vectors *in, struct vectors *out) {
    __asm__ volatile(EACH_OF_16 "movups 64*\\n(%0), %%xmm\\n\n.endr\n" SPIN EACH_OF_16
                                "movups %%xmm\\n, 64*\\n(%1)\n.endr\n"
                     :
                     : "r"(in), "r"(out)
                     : "memory", LOW_VECTORS);
}

static void spin_avx(const struct vectors *in, struct vectors *out) {
    __asm__ volatile(EACH_OF_16 "vmovups 64*\\n(%0), %%ymm\\n\n.endr\n" SPIN EACH_OF_16
                                "vmovups %%ymm\\n, 64*\\n(%1)\n.endr\nvzeroupper\n"
                     :
                     : "r"(in), "r"(out)
                     : "memory", LOW_VECTORS);
}

__attribute__((target("avx512f,avx512bw"))) static void spin_avx512(const struct vectors *in, struct vectors *out) {
    __asm__ volatile(".irp n,0,1,2,3,4,5,6,7\nkmovq 2048+8*\\n(%0), %%k\\n\n.endr\n" EACH_OF_32
                     "vmovups 64*\\n(%0), %%zmm\\n\n.endr\n" SPIN
                     ".irp n,0,1,2,3,4,5,6,7\nkmovq %%k\\n, 2048+8*\\n(%1)\n.endr\n" EACH_OF_32
                     "vmovups %%zmm\\n, 64*\\n(%1)\n.endr\nvzeroupper\n"
                     :
                     : "r"(in), "r"(out)
                     : "memory", LOW_VECTORS, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23",
                       "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4",
                       "k5", "k6", "k7");
}

// The size of a vector register that processor and kernel support: 16, 32 or 64 bytes.
static size_t vector_bytes(void) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        return 64;
    return __builtin_cpu_supports("avx") ? 32 : 16;
}

static void hold_vectors(struct worker *worker) {
    static void (*const spin[])(const struct vectors *, struct vectors *) = {spin_sse, spin_avx, spin_avx512};
    size_t bytes = (size_t)worker->index;
    struct vectors in, out = {0};
    fill(&in, sizeof in, (uint64_t)(uintptr_t)worker);
    worker->rounds = 1;
    spin[bytes / 32](&in, &out);
    for (size_t i = 0; i < (bytes == 64 ? 32 : 16); i++)
        CHECK_EQUAL(memcmp(in.registers[i], out.registers[i], bytes), 0);
    if (bytes == 64)
        CHECK_EQUAL(memcmp(in.masks, out.masks, sizeof in.masks), 0);
}

CASE(vectors, "SSE, AVX and AVX-512 registers of running threads, as far as the machine has them, are unchanged") {
    struct worker workers[6] = {0};
    spin_on = 1;
    for (int i = 0; i < 6; i++) {
        size_t bytes = 16ul << i % 3;
        workers[i].index = (long)(bytes < vector_bytes() ? bytes : vector_bytes());
        spinning = 0;
        start_worker(&workers[i], hold_vectors);
        WAIT_UNTIL(workers[i].rounds == 1 && spinning);
    }
    freeze_here();
    spin_on = 0;
    for (int i = 0; i < 6; i++)
        join_worker(&workers[i]);
}

// Loads the 16 words of `in` into the red zone, the 128 bytes below the stack pointer that a function may use, and the
// first 15 of them into all general registers but rsp. Stores the 15 registers and then the 16 words to `out`.
__asm__(".text\n.type spin_general, @function\nspin_general:\n"
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\npush %rsi\n"
        ".irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n"
        "mov 8*(\\n-1)(%rdi), %rax\nmov %rax, -8*\\n(%rsp)\n.endr\n"
        "mov (%rdi), %rax\nmov 8(%rdi), %rbx\nmov 16(%rdi), %rcx\nmov 24(%rdi), %rdx\nmov 32(%rdi), %rsi\n"
        "mov 40(%rdi), %rbp\nmov 48(%rdi), %r8\nmov 56(%rdi), %r9\nmov 64(%rdi), %r10\nmov 72(%rdi), %r11\n"
        "mov 80(%rdi), %r12\nmov 88(%rdi), %r13\nmov 96(%rdi), %r14\nmov 104(%rdi), %r15\nmov 112(%rdi), %rdi\n"
        "movb $1, spinning(%rip)\n1: pause\ncmpb $0, spin_on(%rip)\njne 1b\n"
        "xchg %rdi, (%rsp)\n" // rdi is now `out`; the value that rdi had is on the stack
        "mov %rax, (%rdi)\nmov %rbx, 8(%rdi)\nmov %rcx, 16(%rdi)\nmov %rdx, 24(%rdi)\nmov %rsi, 32(%rdi)\n"
        "mov %rbp, 40(%rdi)\nmov %r8, 48(%rdi)\nmov %r9, 56(%rdi)\nmov %r10, 64(%rdi)\nmov %r11, 72(%rdi)\n"
        "mov %r12, 80(%rdi)\nmov %r13, 88(%rdi)\nmov %r14, 96(%rdi)\nmov %r15, 104(%rdi)\n"
        "mov (%rsp), %rax\nmov %rax, 112(%rdi)\n"
        ".irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n"
        "mov -8*\\n(%rsp), %rax\nmov %rax, 112+8*\\n(%rdi)\n.endr\n"
        "pop %rsi\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
        ".size spin_general, .-spin_general\n");
void spin_general(const uint64_t in[16], uint64_t out[31]);

static void hold_general(struct worker *worker) {
    uint64_t in[16], out[31] = {0};
    fill(in, sizeof in, 99);
    worker->rounds = 1;
    spin_general(in, out);
    CHECK_EQUAL(memcmp(in, out, 15 * 8), 0);
    CHECK_EQUAL(memcmp(in, out + 15, 16 * 8), 0);
}

CASE(general, "general registers and the red zone below the stack pointer of a running thread are unchanged") {
    struct worker worker = {0};
    spin_on = 1;
    start_worker(&worker, hold_general);
    WAIT_UNTIL(worker.rounds == 1 && spinning);
    freeze_here();
    spin_on = 0;
    join_worker(&worker);
}

static void hold_x87(struct worker *worker) {
    long double in[4] = {1.5L, -2.25L, 3e300L, 1.0L / 3}, out[4] = {0};
    fesetround(FE_UPWARD);
    worker->rounds = 1;
    __asm__ volatile("fldt 0(%0)\nfldt 16(%0)\nfldt 32(%0)\nfldt 48(%0)\n" SPIN
                     "fstpt 48(%1)\nfstpt 32(%1)\nfstpt 16(%1)\nfstpt 0(%1)\n"
                     :
                     : "r"(in), "r"(out)
                     : "memory", "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)");
    for (int i = 0; i < 4; i++)
        CHECK(in[i] == out[i]);
    CHECK_EQUAL(fegetround(), FE_UPWARD);
}

CASE(floating_point, "x87 registers, rounding mode and flush-to-zero bits are unchanged, also in the calling thread") {
    struct worker worker = {0};
    spin_on = 1;
    start_worker(&worker, hold_x87);
    WAIT_UNTIL(worker.rounds == 1 && spinning);
    unsigned state = _mm_getcsr() | 0x8040; // flush to zero, denormals are zeros
    _mm_setcsr(state);
    fesetround(FE_TOWARDZERO);
    freeze_here();
    CHECK_EQUAL(fegetround(), FE_TOWARDZERO);
    CHECK_EQUAL(_mm_getcsr() & 0x8040, 0x8040);
    _mm_setcsr(_mm_getcsr() & ~0x8040u);
    spin_on = 0;
    join_worker(&worker);
}

static void hold_segment(struct worker *worker) {
    uint64_t here = 0xabcdef0123456789u + (uint64_t)worker->index, got;
    CHECK_EQUAL(syscall(SYS_arch_prctl, ARCH_SET_GS, &here), 0);
    worker->rounds = 1;
    while (!worker->stop)
        ;
    __asm__("mov %%gs:0, %0" : "=r"(got));
    CHECK(got == here);
}

CASE(segments, "the GS base that a thread has set is restored for that thread") {
    struct worker workers[2] = {{.index = 1}, {.index = 2}};
    uint64_t here = 0x1122334455667788, got;
    CHECK_EQUAL(syscall(SYS_arch_prctl, ARCH_SET_GS, &here), 0);
    for (int i = 0; i < 2; i++) {
        start_worker(&workers[i], hold_segment);
        WAIT_UNTIL(workers[i].rounds == 1);
    }
    freeze_here();
    __asm__("mov %%gs:0, %0" : "=r"(got));
    CHECK(got == here);
    stop_worker(&workers[0]);
    stop_worker(&workers[1]);
}
