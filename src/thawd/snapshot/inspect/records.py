"""The contents of an image as typed records: kinds and flags by name, strings in place of their offsets.

An image is the file that a freeze makes of a process; a copy is a process that is thawed from it.
`thawd.snapshot.inspect.reader.read` returns these types. If any record cannot be read exactly, it raises an
`ImageError` instead. Standard library only, Python 3.9 and later (so no slots).
"""

from __future__ import annotations

from dataclasses import dataclass

from thawd.snapshot.inspect.layout import PAGE_BYTES


class ImageError(Exception):
    """A file is not an image, is damaged, or is of a format that this thawd does not read.

    The message says what is wrong, where, and what to do.
    """


@dataclass(frozen=True)
class HostKey:
    """The machine and C library of a freeze.

    An image is thawed only where the kernel is not older, and the CPU has the same features, or more.

    Attributes:
        glibc: version of the C library.
        kernel_release, kernel_version: `uname -r`, `uname -v`.
        boot_id: id of the boot; each boot has a new one.
        cpu_vendor: CPUID leaf 0.
        cpu_signature: CPUID leaf 1, EAX.
        cpu_features: 14 words of CPUID, in the order of the table in docs/reference/snapshot-format.md.
        xsave_bytes: size of the area for registers in a signal frame.
        xcr0: which registers are in that area, as bits.
        xsave_places: offset and size in that area of each of 32 components; 0 for those that are not in `xcr0`.
    """

    glibc: str
    kernel_release: str
    kernel_version: str
    boot_id: str
    cpu_vendor: str
    cpu_signature: int
    cpu_features: tuple[int, ...]
    xsave_bytes: int
    xcr0: int
    xsave_places: tuple[int, ...]


@dataclass(frozen=True)
class ProcessFacts:
    """Facts about the frozen process. prctl(2), PR_SET_MM_MAP, explains most of the addresses.

    Attributes:
        landing: address of the struct that tells a process whether it is a thawed copy.
        parcel, parcel_bytes: area into which thaw puts a copy's arguments and environment variables.
        frozen_unix_ns: wall clock at the freeze, nanoseconds since 1970.
        register_permissions: large registers (AMX) that the process requested, bits of XCR0; arch_prctl(2),
            ARCH_GET_XCOMP_PERM.
        working_folder: current directory.
        umask: mode bits that are cleared in new files.
        monotonic_ns, boottime_ns, raw_ns: CLOCK_MONOTONIC, CLOCK_BOOTTIME and CLOCK_MONOTONIC_RAW at the freeze.
        bounding, permitted, effective, inheritable, ambient: capabilities(7), one bit each.
        limits: getrlimit(2), soft and hard, of resource 0, 1 and so on.
        users, groups: real, effective and saved ids.
        more_groups: supplementary groups, decimal, each followed by a space.
        secure_bits, no_privileges, dumpable, subreaper, no_huge_pages, fixed_code, death_signal: prctl(2).
        seccomp_filters: number of seccomp filters on each thread.
        personality: personality(2).
    """

    code_start: int
    code_end: int
    data_start: int
    data_end: int
    brk_start: int
    brk_end: int
    stack_start: int
    arguments_start: int
    arguments_end: int
    environment_start: int
    environment_end: int
    vdso_start: int
    vdso_bytes: int
    vvar_start: int
    vvar_bytes: int
    vdso_hash: int
    landing: int
    parcel: int
    parcel_bytes: int
    frozen_unix_ns: int
    register_permissions: int
    working_folder: str
    umask: int
    monotonic_ns: int
    boottime_ns: int
    bounding: int
    permitted: int
    effective: int
    inheritable: int
    ambient: int
    limits: tuple[int, ...]
    users: tuple[int, int, int]
    groups: tuple[int, int, int]
    more_groups: str
    secure_bits: int
    no_privileges: int
    seccomp_filters: int
    dumpable: int
    subreaper: int
    no_huge_pages: int
    fixed_code: int
    death_signal: int
    personality: int
    raw_ns: int


@dataclass(frozen=True)
class Operation:
    """One step in building the memory of a copy.

    Attributes:
        address, length: the range that the step changes, bytes, multiples of the page size.
        offset: offset in the file, the object or the image.
        kind: one of `layout.OPERATION_KINDS`.
        index: index in the image's files or objects; None if the kind has none.
        protection: as in /proc/PID/maps, for example "rw-".
        flags, advice: names of `layout.OPERATION_FLAGS` and `ADVICE`.
    """

    address: int
    length: int
    offset: int
    kind: str
    index: int | None
    protection: str
    flags: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def end(self) -> int:
        """First address after the range."""
        return self.address + self.length


@dataclass(frozen=True)
class Thread:
    """A thread at the freeze: its signal frame (`context`), its thread-local memory, and its state in the kernel."""

    context: int
    fs_base: int
    gs_base: int
    clear_child_tid: int
    robust_list: int
    rseq: int
    tid: int
    policy: int
    name: str
    cpu_ns: int
    timer_slack_ns: int
    nice: int
    io_priority: int


@dataclass(frozen=True)
class File:
    """A file that is mapped or open.

    Attributes:
        bytes, modified_ns: size and time of last change, nanoseconds since 1970, when the image was made.
        checked: whether both must be unchanged at the thaw.
    """

    device: int
    inode: int
    bytes: int
    modified_ns: int
    path: str
    checked: bool


@dataclass(frozen=True)
class MemoryObject:
    """Memory that belongs to no file, and that several mappings or descriptors can share.

    Attributes:
        bytes: size of the object.
        offset: offset of the object's contents in the image.
        name: the name that the object was made with, only for display.
        seals: names of `layout.SEALS`.
    """

    bytes: int
    offset: int
    name: str
    seals: tuple[str, ...]

    @property
    def stored_bytes(self) -> int:
        """Size of the object's contents in the image."""
        return -(-self.bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Descriptor:
    """An open descriptor.

    Attributes:
        kind: one of `layout.DESCRIPTOR_KINDS`; it determines the meaning of `value` and `index`. For the kind ``copy``
            (a duplicate made with dup(2)) `index` is the index of the other descriptor's record; for an end of a socket
            pair it is the number of the other end.
        open_flags: as returned by fcntl(2), F_GETFL.
        position: position in the file or object.
        data_offset, data_bytes: place in the image of the data in a pipe or in this end of a socket pair.
    """

    number: int
    kind: str
    open_flags: int
    close_on_exec: bool
    position: int
    value: int
    data_offset: int
    data_bytes: int
    index: int


@dataclass(frozen=True)
class EpollWatch:
    """A watch of an epoll descriptor: the watched descriptor's number, the events, and the data reported with them."""

    epoll: int
    number: int
    events: int
    data: int


@dataclass(frozen=True)
class Socket:
    """A socket, and what a copy gets for it.

    Attributes:
        family, type, protocol: as socket(2) takes them.
        revival: what a copy gets for the socket, one of `layout.SOCKET_REVIVALS`.
        backlog: as listen(2) takes it.
        first_option, option_count: range of the socket's options among all options of the image.
        any_port: whether the kernel chooses the port, or a Unix socket's abstract name, for each copy.
        local, peer: sockaddr; empty if not bound or connected. An ended connection keeps its peer's address.
    """

    family: int
    type: int
    protocol: int
    revival: str
    backlog: int
    first_option: int
    option_count: int
    any_port: bool
    local: bytes
    peer: bytes


@dataclass(frozen=True)
class SocketOption:
    """An option of a socket, as setsockopt(2) takes it."""

    level: int
    name: int
    value: bytes


@dataclass(frozen=True)
class Ring:
    """An io_uring without pending requests.

    Attributes:
        rings, rings_bytes, requests, requests_bytes: addresses and sizes of the io_uring's mappings.
        entries, completions: capacity of the rings.
        submitted: number of requests submitted so far.
    """

    rings: int
    rings_bytes: int
    requests: int
    requests_bytes: int
    entries: int
    completions: int
    submitted: int


@dataclass(frozen=True)
class SignalAction:
    """A signal's action, as rt_sigaction(2) takes it."""

    handler: int
    flags: int
    restorer: int
    mask: int


@dataclass(frozen=True)
class Image:
    """A whole image. Everything in it has been checked, except the contents of its pages.

    Attributes:
        path: path of the file.
        mode, owner: permissions and user id of the file.
        file_bytes, disk_bytes: size of the file, and its size on the disk without holes.
        layout: version of the format.
        architecture: "x86-64".
        flags: names of `layout.IMAGE_FLAGS`.
        data_offset: where the pages begin; header and tables are before it.
        anonymous_offset: pages from here on belong to anonymous memory, pages before it to mapped files.
        tables_bytes: size of the tables.
        signals: the actions of signals 1 to 64.
        words: addresses and new values of single 8-byte words, which a thaw writes into pages mapped from the base.
        vdso: machine code of the vDSO.
    """

    path: str
    mode: int
    owner: int
    file_bytes: int
    disk_bytes: int
    layout: int
    architecture: str
    flags: tuple[str, ...]
    data_offset: int
    anonymous_offset: int
    tables_bytes: int
    host: HostKey
    process: ProcessFacts
    operations: tuple[Operation, ...]
    threads: tuple[Thread, ...]
    files: tuple[File, ...]
    objects: tuple[MemoryObject, ...]
    descriptors: tuple[Descriptor, ...]
    epoll: tuple[EpollWatch, ...]
    sockets: tuple[Socket, ...]
    options: tuple[SocketOption, ...]
    rings: tuple[Ring, ...]
    signals: tuple[SignalAction, ...]
    words: tuple[tuple[int, int], ...]
    vdso: bytes
