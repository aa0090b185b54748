// Runs in freeze and in thaw. Describes the CPU as far as programs can depend on it, and compares two of them.
//
// Libraries choose code for the CPU when they are initialised. A copy continues with that choice, so its CPU must have
// each feature that the CPU of the freeze had; it may have more. Vendor and model do not matter.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID; AMD64 Architecture
// Programmer's Manual, volume 3, appendix E.

#include "cpu.h"

#include "text.h"

enum { EAX, EBX, ECX, EDX };

#define BIT(n) (UINT32_C(1) << (n))
#define BITS(from, to) (UINT32_C(0xffffffff) >> (31 - (to)) & UINT32_C(0xffffffff) << (from))
#define ONLY(bits) (~(uint32_t)(bits))

// The words of `cpu_features`. `ignored` are bits that no program depends on: they concern only the kernel, or only
// speed. A bit whose meaning is not known here is not ignored.
static const struct {
    uint32_t leaf, subleaf;
    int out; // register
    const char *name;
    uint32_t ignored;
} words[CPU_WORDS] = {
    // Without DTES64, MONITOR, DS-CPL, VMX, SMX, EIST, TM2, CNXT-ID, SDBG, xTPR, PDCM, PCID, DCA, x2APIC, the deadline
    // timer, and the bit of hypervisors.
    {1, 0, ECX, "1 ECX", BITS(2, 8) | BITS(10, 11) | BITS(14, 15) | BITS(17, 18) | BIT(21) | BIT(24) | BIT(31)},
    // Without VME to MCE but TSC, APIC, MTRR to MCA, PAT to PSN, DS, ACPI, SS to PBE.
    {1, 0, EDX, "1 EDX", BITS(1, 3) | BITS(5, 7) | BIT(9) | BITS(12, 14) | BITS(16, 18) | BITS(21, 22) | BITS(27, 31)},
    // Without TSC_ADJUST, SGX, FDP_EXCPTN_ONLY, SMEP, ERMS, INVPCID, RDT-M, the FPU's CS and DS, RDT-A, SMAP, PT.
    {7, 0, EBX, "7 EBX", BITS(1, 2) | BITS(6, 7) | BITS(9, 10) | BITS(12, 13) | BIT(15) | BIT(20) | BIT(25)},
    // Without UMIP, OSPKE (XCR0 contains the same fact), shadow stacks, TME, LA57, MAWAU, KL, the bus lock detector,
    // SGX_LC, PKS. A process with a shadow stack is not frozen.
    {7, 0, ECX, "7 ECX", BIT(2) | BIT(4) | BIT(7) | BIT(13) | BITS(16, 21) | BITS(23, 24) | BITS(30, 31)},
    // Without SGX keys, FSRM, bits about speculation and errata, HYBRID, PCONFIG, LBR, IBT, and capability registers.
    {7, 0, EDX, "7 EDX", BIT(1) | BIT(4) | BITS(9, 13) | BIT(15) | BITS(18, 20) | BITS(26, 31)},
    // Without FZRM, FSRS, FSRC, FRED, LKGS, WRMSRNS, NMI sources, HRESET, LAM, MSRLIST, INVD.
    {7, 1, EAX, "7.1 EAX", BITS(10, 12) | BITS(17, 20) | BIT(22) | BITS(26, 27) | BIT(30)},
    {7, 1, EDX, "7.1 EDX", BIT(14) | BITS(17, 18)}, // without PREFETCHI, UIRET's flag, supervisor shadow stacks
    // Without CmpLegacy, SVM, ExtApic, CR8, MisAlignSse's register bit, OSVW, IBS, SKINIT, WDT, TCE, topology, counters
    // and breakpoints.
    {0x80000001, 0, ECX, "80000001 ECX",
     BITS(1, 4) | BITS(9, 10) | BITS(12, 14) | BIT(17) | BIT(19) | BITS(22, 28) | BIT(30)},
    // Only SYSCALL, MMXEXT, FFXSR, RDTSCP, LM, 3DNOWEXT and 3DNOW; AMD repeats leaf 1 in other bits.
    {0x80000001, 0, EDX, "80000001 EDX", ONLY(BIT(11) | BIT(22) | BIT(25) | BIT(27) | BITS(29, 31))},
    {13, 1, EAX, "13.1 EAX", BITS(3, 4)},                                 // without XSAVES and XFD
    {0x80000008, 0, EBX, "80000008 EBX", ONLY(BIT(0) | BIT(4) | BIT(8))}, // only CLZERO, RDPRU, MCOMMIT
    {0x80000021, 0, EAX, "80000021 EAX", ONLY(BIT(23))},                  // only AVX512_BMM
    {30, 1, EAX, "30.1 EAX", 0},                                          // AMX
    {36, 0, EBX, "36 EBX", 0},                                            // AVX10; its first byte is a version
};
#define AVX10_WORD 13
#define AVX10_VERSION UINT32_C(0xff)

void cpu_describe(struct host_key *host) {
    uint32_t leaf[4], highest, highest_extended;
    cpu_id(0, 0, leaf);
    highest = leaf[EAX];
    copy_bytes(host->cpu_vendor, &leaf[EBX], 4);
    copy_bytes(host->cpu_vendor + 4, &leaf[EDX], 4);
    copy_bytes(host->cpu_vendor + 8, &leaf[ECX], 4);
    cpu_id(0x80000000, 0, leaf);
    highest_extended = leaf[EAX];
    cpu_id(1, 0, leaf);
    host->cpu_signature = leaf[EAX];
    if (leaf[ECX] & BIT(27)) // OSXSAVE: the instruction XGETBV works
        host->xcr0 = extended_state();
    for (int i = 0; i < CPU_WORDS; i++) {
        if (words[i].leaf > (words[i].leaf & BIT(31) ? highest_extended : highest))
            continue;
        // In a virtual machine, each CPUID takes some microseconds. Leaf 1 has been read, and words of one leaf are
        // adjacent.
        if (i && (words[i].leaf != words[i - 1].leaf || words[i].subleaf != words[i - 1].subleaf))
            cpu_id(words[i].leaf, words[i].subleaf, leaf);
        host->cpu_features[i] = leaf[words[i].out] & ~words[i].ignored;
    }
    if (highest < 13)
        return;
    cpu_id(13, 0, leaf);
    host->xsave_bytes = leaf[EBX];
    for (uint32_t i = 2; i < XSAVE_COMPONENTS; i++) {
        if (!(host->xcr0 >> i & 1))
            continue;
        cpu_id(13, i, leaf);
        host->xsave_places[2 * i] = leaf[EBX];
        host->xsave_places[2 * i + 1] = leaf[EAX];
    }
}

static int first_bit(uint64_t bits) {
    return __builtin_ctzll(bits);
}

// The features of word `i` that `frozen` has and `now` lacks.
static uint32_t missing(const struct host_key *frozen, const struct host_key *now, int i) {
    uint32_t had = frozen->cpu_features[i] & ~words[i].ignored, has = now->cpu_features[i];
    if (i == AVX10_WORD && (had & AVX10_VERSION) <= (has & AVX10_VERSION))
        had &= ~AVX10_VERSION;
    return had & ~has;
}

const char *cpu_difference(const struct host_key *frozen, const struct host_key *now, char detail[CPU_DETAIL_BYTES]) {
    struct writer out = text_writer(detail, CPU_DETAIL_BYTES);
    for (int i = 0; i < CPU_WORDS; i++) {
        uint32_t bits = missing(frozen, now, i);
        if (!bits)
            continue;
        put_text(&out, "CPUID ");
        put_text(&out, words[i].name);
        put_text(&out, " bit ");
        put_number(&out, (uint64_t)first_bit(bits), 10);
        return "the image was frozen on a CPU with a feature that this one lacks: ";
    }
    uint64_t lost = frozen->xcr0 & ~now->xcr0;
    for (int i = 2; !lost && i < XSAVE_COMPONENTS; i++)
        if (frozen->xcr0 >> i & 1 && (frozen->xsave_places[2 * i] != now->xsave_places[2 * i] ||
                                      frozen->xsave_places[2 * i + 1] != now->xsave_places[2 * i + 1]))
            lost = UINT64_C(1) << i;
    if (!lost)
        return 0;
    put_number(&out, (uint64_t)first_bit(lost), 10);
    return "the image was frozen where the kernel saves registers that it does not save here, or at another place: "
           "XCR0 "
           "bit ";
}
