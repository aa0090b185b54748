// Used by freeze and by thaw. The layout of an image on disk: what freeze writes and thaw reads.
//
// An image is one file, written once and never changed. It begins with the header. Then come the sections, which are
// tables of fixed-size records in the order of `enum section`, and then, from `data_offset` on, the pages. All numbers
// are little-endian. Addresses are those of the frozen process; offsets are from the file's start.
// docs/reference/snapshot-format.md describes every field; a test compares that page with this file.

#ifndef THAWD_IMAGE_H
#define THAWD_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#define IMAGE_MAGIC "THAWDIMG"
#define IMAGE_LAYOUT 4
#define IMAGE_ARCHITECTURE_X86_64 62 // EM_X86_64
#define IMAGE_PAGE 4096

// The zone: addresses that thaw itself uses while it restores the frozen process's mappings. A process with memory
// there is not frozen.
#define ZONE_START UINT64_C(0x3f0000000000)
#define ZONE_BYTES UINT64_C(0x000100000000) // 4 GiB of addresses, a few hundred KiB of them used

#define NO_INDEX UINT32_MAX

enum section {
    SECTION_OPERATIONS,  // struct operation; thaw executes them in order
    SECTION_THREADS,     // struct thread_state; the main thread's is the first
    SECTION_FILES,       // struct file_identity
    SECTION_OBJECTS,     // struct memory_object
    SECTION_DESCRIPTORS, // struct descriptor, in the order of their numbers
    SECTION_EPOLL,       // struct epoll_watch
    SECTION_SOCKETS,     // struct socket_state
    SECTION_OPTIONS,     // struct socket_option; the options of one socket are adjacent
    SECTION_RINGS,       // struct ring_state
    SECTION_SIGNALS,     // struct signal_action, of the signals 1 to 64
    SECTION_WORDS,       // struct changed_word, in the order of their addresses
    SECTION_VDSO,        // bytes: the code pages of the vDSO
    SECTION_STRINGS,     // bytes: paths and names, each ended by a NUL
    SECTION_COUNT
};

struct section_place {
    uint64_t offset;
    uint32_t count;        // number of records; for the last two sections, number of bytes
    uint32_t record_bytes; // 1 for the last two sections
};

// The machine on which a process was frozen. Thaw refuses the image if the machine on which it runs lacks something,
// and names that.
struct host_key {
    char kernel_release[72];   // uname -r; the running kernel must not be older (first two numbers)
    char kernel_version[72];   // uname -v; for display only
    char boot_id[40];          // /proc/sys/kernel/random/boot_id; if it is the same, so are kernel and CPU
    char cpu_vendor[16];       // CPUID leaf 0; for display only
    uint32_t cpu_signature;    // CPUID leaf 1, EAX: family, model, stepping; for display only
    uint32_t cpu_features[14]; // words of CPUID, without bits that no program depends on (cpu.c); all must be there
    uint32_t xsave_bytes;      // CPUID leaf 13, EBX: size of the area for registers in a signal frame; for display only
    uint64_t xcr0;             // XGETBV 0: which registers the kernel saves; all must be saved
    // For each component from 2 on that is in `xcr0`, a pair: its offset and its size in that area. Both must be equal.
    uint32_t xsave_places[64];
};

// Facts about the process that are neither memory nor threads nor descriptors.
struct process_facts {
    uint64_t code_start, code_end, data_start, data_end; // prctl(2), PR_SET_MM_MAP
    uint64_t brk_start, brk_end;
    uint64_t stack_start; // where the main thread's stack began; it grows down from there
    uint64_t arguments_start, arguments_end;
    uint64_t environment_start, environment_end;
    uint64_t vdso_start, vdso_bytes; // the vDSO's code
    uint64_t vvar_start, vvar_bytes; // all data areas of the vDSO, which are before its code
    uint64_t vdso_hash;              // `checksum` of the code
    uint64_t landing;                // address of struct landing, into which thaw writes (thaw_landing.h)
    uint64_t parcel, parcel_bytes;   // the parcel: memory that thaw fills with new arguments and environment variables
    uint64_t frozen_unix_ns;         // wall clock at the freeze
    uint64_t register_permissions;   // arch_prctl(2), ARCH_GET_XCOMP_PERM: large registers that the process requested
    uint32_t working_folder;         // offset in SECTION_STRINGS
    uint32_t umask;
    uint64_t monotonic_ns, boottime_ns; // CLOCK_MONOTONIC and CLOCK_BOOTTIME at the freeze
    // Capabilities of the process, capabilities(7), one bit for each. A copy has no other capabilities.
    uint64_t bounding, permitted, effective, inheritable, ambient;
    uint64_t limits[32];      // getrlimit(2): soft and hard, of resource 0, 1, … 15
    uint32_t users[3];        // real, effective, saved
    uint32_t groups[3];       // real, effective, saved
    uint32_t more_groups;     // offset in SECTION_STRINGS: supplementary groups, decimal, each followed by a space
    uint32_t secure_bits;     // prctl(2), PR_GET_SECUREBITS
    uint32_t no_privileges;   // PR_GET_NO_NEW_PRIVS
    uint32_t seccomp_filters; // number of filters, the same for every thread
    uint32_t dumpable;        // PR_GET_DUMPABLE
    uint32_t subreaper;       // PR_GET_CHILD_SUBREAPER
    uint32_t no_huge_pages;   // PR_GET_THP_DISABLE
    uint32_t fixed_code;      // PR_GET_MDWE: memory that was writable cannot be made executable
    uint32_t death_signal;    // PR_GET_PDEATHSIG
    uint32_t personality;     // personality(2)
    uint64_t raw_ns;          // CLOCK_MONOTONIC_RAW at the freeze
};

enum image_flag {
    IMAGE_COPY = 1,        // thaw reads all page data from the image instead of mapping it
    IMAGE_INSIDE_VDSO = 2, // a thread was stopped inside the vDSO, so a copy must have the same vDSO
};

struct image_header {
    char magic[8];
    uint32_t layout;
    uint32_t architecture;
    uint64_t header_checksum; // `checksum` of this struct with this field 0
    uint64_t tables_checksum; // `checksum` of everything between the header's page and the end of the last section
    uint64_t file_bytes;
    uint64_t data_offset;      // multiple of IMAGE_PAGE; sections end before it
    uint64_t anonymous_offset; // data from here on belongs to anonymous memory, data before it to pages of files
    uint32_t flags;            // enum image_flag
    uint32_t glibc;            // offset in SECTION_STRINGS: gnu_get_libc_version()
    struct section_place sections[SECTION_COUNT];
    struct host_key host;
    struct process_facts process;
};

enum operation_kind {
    OPERATION_ANONYMOUS,   // private anonymous memory
    OPERATION_FILE,        // private mapping of a file; `index` in SECTION_FILES, `offset` in that file
    OPERATION_FILE_SHARED, // shared mapping of a file
    OPERATION_OBJECT,      // shared mapping of a memory object; `index` in SECTION_OBJECTS, `offset` in the object
    OPERATION_DATA,        // pages of this image from `offset` on, mapped privately over the mapping at `address`
    OPERATION_COPY,        // pages of this image from `offset` on, read into the mapping at `address`
    OPERATION_KINDS
};

// Advice of madvise and mlock that thaw repeats; bits of `operation.advice`.
enum advice {
    ADVICE_DONTFORK = 1,
    ADVICE_DONTDUMP = 2,
    ADVICE_HUGEPAGE = 4,
    ADVICE_NOHUGEPAGE = 8,
    ADVICE_MERGEABLE = 16,
    ADVICE_WIPEONFORK = 32, // the contents of such memory are never stored
    ADVICE_LOCKED = 64,
    ADVICE_SEQUENTIAL = 128,
    ADVICE_RANDOM = 256,
};

enum operation_flag {
    OPERATION_NORESERVE = 1,
    OPERATION_STACK = 2, // the main thread's stack; the range includes the addresses below it into which it may grow
};

struct operation {
    uint64_t address;    // multiple of IMAGE_PAGE
    uint64_t length;     // bytes, multiple of IMAGE_PAGE
    uint64_t offset;     // in the file, the object or this image
    uint32_t kind;       // enum operation_kind
    uint32_t index;      // NO_INDEX if this kind has no index
    uint32_t protection; // PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4
    uint32_t flags;      // enum operation_flag
    uint32_t advice;     // enum advice
    uint32_t reserved;
};

struct thread_state {
    uint64_t context; // address of the thread's ucontext, in the signal frame on its own stack
    uint64_t fs_base, gs_base;
    uint64_t clear_child_tid; // address of glibc's pthread.tid, to which the new thread id is written
    uint64_t robust_list;     // get_robust_list(2); 0: none
    uint64_t rseq;            // address of the thread's struct rseq; 0: not registered
    int32_t tid;              // thread id in the frozen process
    uint32_t policy;          // sched_getscheduler(2)
    char name[16];            // prctl(2), PR_GET_NAME
    uint64_t cpu_ns;          // the thread's CPU clock at the freeze
    uint64_t timer_slack_ns;  // prctl(2), PR_GET_TIMERSLACK
    int32_t nice;             // getpriority(2)
    uint32_t io_priority;     // ioprio_get(2)
};

struct file_identity {
    uint64_t device, inode;
    uint64_t bytes;
    int64_t modified_ns; // st_mtim
    uint32_t path;       // offset in SECTION_STRINGS
    uint32_t checked;    // 1: bytes, modified_ns and, outside the temporary folder, inode must be the same at the thaw
};

// Memory without a file that several mappings or descriptors share: shared anonymous memory, memfd, a deleted file. It
// is restored as a memfd.
struct memory_object {
    uint64_t bytes;
    uint64_t offset; // offset in this image of its contents: `bytes`, rounded up to whole pages
    uint32_t name;   // offset in SECTION_STRINGS
    uint32_t seals;  // fcntl(2), F_GET_SEALS
};

enum descriptor_kind {
    DESCRIPTOR_PROVIDED,   // passed by the process that starts thaw: under the same number, or as --fd OLD=NEW says
    DESCRIPTOR_FILE,       // regular file or folder: `index` in SECTION_FILES, `position`, `open_flags`
    DESCRIPTOR_DEVICE,     // /dev/null and the like, by path: `index` in SECTION_FILES
    DESCRIPTOR_OBJECT,     // `index` in SECTION_OBJECTS, `position`
    DESCRIPTOR_PIPE_READ,  // `index`: number of the pipe; `value`: capacity; `data`: the pipe's contents
    DESCRIPTOR_PIPE_WRITE, // `index`: number of the pipe
    DESCRIPTOR_EVENTFD,    // `value`: count, `index`: 1 for a semaphore
    DESCRIPTOR_EPOLL,      // SECTION_EPOLL has its watches
    DESCRIPTOR_SOCKETPAIR, // AF_UNIX pair within the process; `index`: number of the other end; `value`: type; `data`:
                           // the unread data of this end
    DESCRIPTOR_COPY,       // shares its open file (position, flags) with the earlier record `index` of this section
    DESCRIPTOR_SOCKET,     // `index` in SECTION_SOCKETS
    DESCRIPTOR_TIMER, // timerfd; `index`: clock, TIMER_CANCELLED_BY_SET; `position`: expiry on that clock, 0: disarmed;
                      // `value`: interval; both nanoseconds
    DESCRIPTOR_SIGNALS, // signalfd; `value`: mask of its signals
    DESCRIPTOR_INOTIFY, // an inotify descriptor without watches
    DESCRIPTOR_RING,    // io_uring; `index` in SECTION_RINGS
    DESCRIPTOR_KINDS
};

struct descriptor {
    int32_t number;
    uint32_t kind;       // enum descriptor_kind
    uint32_t open_flags; // fcntl(2), F_GETFL
    uint32_t close_on_exec;
    uint64_t position;
    uint64_t value;
    uint64_t data_offset; // in this image
    uint32_t data_bytes;
    uint32_t index;
};

struct epoll_watch {
    int32_t epoll;  // number of the epoll descriptor
    int32_t number; // number of the watched descriptor
    uint32_t events;
    uint32_t reserved;
    uint64_t data;
};

#define TIMER_CANCELLED_BY_SET 256 // stands for TFD_TIMER_CANCEL_ON_SET; added to the clock in `descriptor.index`

// How a socket is restored in a copy.
enum socket_revival {
    SOCKET_ENDED, // the connection has ended: read returns 0, write fails with EPIPE, poll reports POLLIN and POLLHUP
    SOCKET_NEW,   // a new socket, bound and connected to the same addresses; never for a connected stream socket
    SOCKET_LISTENING, // listens on another port, which the kernel chooses
    SOCKET_MUTE,      // listens where nothing can connect to it; threads that wait for connections keep waiting
    SOCKET_REVIVALS
};

#define SOCKET_ADDRESS_BYTES 112 // the largest sockaddr is sockaddr_un, 110 bytes

struct socket_state {
    uint32_t family, type, protocol; // socket(2)
    uint32_t revival;                // enum socket_revival
    uint32_t backlog;                // listen(2)
    uint32_t first_option;           // in SECTION_OPTIONS
    uint32_t option_count;
    uint32_t local_bytes, peer_bytes; // 0: not bound, not connected
    uint32_t any_port;                // 1: the kernel chose the port, and chooses again for each copy
    char local[SOCKET_ADDRESS_BYTES]; // sockaddr
    char peer[SOCKET_ADDRESS_BYTES];  // sockaddr; for an ended connection it is only displayed
};

#define SOCKET_OPTION_BYTES 16

// A socket option, as setsockopt(2) takes it. Stored only if a new socket of the same kind has another value.
struct socket_option {
    int32_t level, name;
    uint32_t bytes;
    uint32_t reserved;
    char value[SOCKET_OPTION_BYTES];
};

// An io_uring without pending requests. Addresses and lengths are multiples of IMAGE_PAGE.
struct ring_state {
    uint64_t rings, rings_bytes;       // mapping of both rings
    uint64_t requests, requests_bytes; // mapping of the requests
    uint32_t entries, completions;     // capacity of the rings
    uint32_t submitted;                // number of requests so far, all of them completed
    uint32_t reserved;
};

// As rt_sigaction(2) takes it, on x86-64.
struct signal_action {
    uint64_t handler, flags, restorer, mask;
};

// Eight bytes by which a page differs from the page of an earlier image that is mapped there. The addresses are
// multiples of 8, in private mappings that may be read and written.
struct changed_word {
    uint64_t address;
    uint64_t value;
};

// A 64-bit checksum that detects damaged and incompletely written tables. It does not protect against forgery; the
// image's owner and mode do that. It begins with h = number of bytes. For each word of eight bytes, the last one padded
// with zeros: h = (h ^ word) * K, then h ^= h >> 29.
static inline uint64_t checksum(const void *data, uint64_t bytes) {
    const unsigned char *at = data;
    uint64_t hash = bytes;
    for (; bytes; at += 8) {
        uint64_t word = 0;
        uint64_t take = bytes < 8 ? bytes : 8;
        __builtin_memcpy(&word, at, take);
        bytes -= take;
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

_Static_assert(sizeof(struct section_place) == 16, "on disk");
_Static_assert(sizeof(struct host_key) == 528, "on disk");
_Static_assert(sizeof(struct process_facts) == 560, "on disk");
_Static_assert(sizeof(struct image_header) == 64 + 16 * SECTION_COUNT + 528 + 560, "on disk");
_Static_assert(sizeof(struct image_header) <= IMAGE_PAGE, "the header is one page");
_Static_assert(offsetof(struct image_header, sections) == 64, "on disk");
_Static_assert(sizeof(struct operation) == 48, "on disk");
_Static_assert(sizeof(struct thread_state) == 96, "on disk");
_Static_assert(sizeof(struct file_identity) == 40, "on disk");
_Static_assert(sizeof(struct memory_object) == 24, "on disk");
_Static_assert(sizeof(struct descriptor) == 48, "on disk");
_Static_assert(sizeof(struct epoll_watch) == 24, "on disk");
_Static_assert(sizeof(struct socket_state) == 264, "on disk");
_Static_assert(sizeof(struct socket_option) == 32, "on disk");
_Static_assert(sizeof(struct ring_state) == 48, "on disk");
_Static_assert(sizeof(struct signal_action) == 32, "on disk");
_Static_assert(sizeof(struct changed_word) == 16, "on disk");

#endif
