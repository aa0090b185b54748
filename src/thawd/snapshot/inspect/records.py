"""What an image says, as typed records: kinds and flags by name, strings in place of their offsets.

Owns the shapes that `thawd.snapshot.inspect.reader.read` returns; standard library only, Python 3.9 and later (so no
slots). No record is ever half right: what cannot be read faithfully is an `ImageError` instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from thawd.snapshot.inspect.layout import PAGE_BYTES


class ImageError(Exception):
    """A file is not an image, or an image is damaged or not for this thawd; says what, where, and the way out."""


@dataclass(frozen=True)
class HostKey:
    """The machine and C library an image can be thawed on; all of them must be the same.

    Attributes:
        glibc: version of the C library.
        kernel_release, kernel_version: `uname -r`, `uname -v`.
        boot_id: of the boot; a new one with each.
        cpu_vendor, cpu_signature, cpu_features: CPUID leaf 0; leaf 1, EAX; leaf 1 ECX and EDX, leaf 7 EBX, ECX and EDX,
            leaf 7.1 EAX.
        xsave_bytes, xcr0: size and contents of the registers' area in a signal frame.
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


@dataclass(frozen=True)
class ProcessFacts:
    """Facts about the frozen process. Addresses are its own; names are those of prctl(2), PR_SET_MM_MAP.

    Attributes:
        landing: address of the struct in which a thawed copy learns that it is one.
        parcel, parcel_bytes: area for new arguments and environment variables.
        frozen_unix_ns: wall clock at the freeze, nanoseconds since 1970.
        register_permissions: large registers (AMX) it asked for, bits of XCR0; arch_prctl(2), ARCH_GET_XCOMP_PERM.
        working_folder: current directory.
        umask: mode bits that new files do without.
        monotonic_ns, boottime_ns: CLOCK_MONOTONIC and CLOCK_BOOTTIME at the freeze.
        bounding, permitted, effective, inheritable, ambient: capabilities(7), one bit each.
        limits: getrlimit(2), soft and hard, of resource 0, 1 and so on.
        users, groups: ids: real, effective, saved.
        more_groups: supplementary groups, decimal, each followed by a space.
        secure_bits, no_privileges, dumpable, subreaper, no_huge_pages, fixed_code, death_signal: prctl(2).
        seccomp_filters: filters that every thread was under.
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


@dataclass(frozen=True)
class Operation:
    """One step of building up the memory.

    Attributes:
        address, length: what it is done to, bytes, multiples of the page size.
        offset: in the file, the object or the image.
        kind: of `inspect_layout.OPERATION_KINDS`.
        index: in the image's files or objects; None where the kind has none.
        protection: as in /proc/PID/maps, "rw-".
        flags, advice: names of `inspect_layout.OPERATION_FLAGS` and `ADVICE`.
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
        """First address after it."""
        return self.address + self.length


@dataclass(frozen=True)
class Thread:
    """A thread where it stood: its signal frame, `context`, its thread-local memory, and what the kernel keeps."""

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
        checked: whether both must be the same at the thaw.
    """

    device: int
    inode: int
    bytes: int
    modified_ns: int
    path: str
    checked: bool


@dataclass(frozen=True)
class MemoryObject:
    """Memory without a file behind it that several mappings or descriptors share.

    Attributes:
        bytes: its size.
        offset: of its contents in the image.
        name: as it was made, for people.
        seals: names of `inspect_layout.SEALS`.
    """

    bytes: int
    offset: int
    name: str
    seals: tuple[str, ...]

    @property
    def stored_bytes(self) -> int:
        """What its contents take in the image."""
        return -(-self.bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Descriptor:
    """An open descriptor.

    Attributes:
        kind: of `inspect_layout.DESCRIPTOR_KINDS`; it says what `value` and `index` are. A copy's index is that of
            another record, a socket pair's the number of the other end.
        open_flags: as fcntl(2), F_GETFL, gives them.
        position: in the file or object.
        data_offset, data_bytes: in the image, what a pipe, or this end of a pair of sockets, held.
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
    """What an epoll descriptor watches: the number of another one, for events, reported with data."""

    epoll: int
    number: int
    events: int
    data: int


@dataclass(frozen=True)
class Socket:
    """What a socket is in a copy.

    Attributes:
        family, type, protocol: as socket(2) takes them.
        revival: of `inspect_layout.SOCKET_REVIVALS`.
        backlog: as listen(2) takes it.
        first_option, option_count: its options among the image's.
        any_port: whether the kernel chooses its port, or its abstract name.
        local, peer: sockaddr; empty where it is not bound or connected. An ended connection keeps its peer's.
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
    """An io_uring with nothing under way.

    Attributes:
        rings, rings_bytes, requests, requests_bytes: where it is mapped.
        entries, completions: room in the rings.
        submitted: requests so far.
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
    """As rt_sigaction(2) takes it."""

    handler: int
    flags: int
    restorer: int
    mask: int


@dataclass(frozen=True)
class Image:
    """A whole image; everything in it has been checked but the contents of its pages.

    Attributes:
        path: where it was read from.
        mode, owner: permissions and user id of the file.
        file_bytes, disk_bytes: its size, and what it takes on the disk, where holes take nothing.
        layout, architecture: of the format; "x86-64".
        flags: names of `inspect_layout.IMAGE_FLAGS`.
        data_offset: where the pages begin; before it lie header and tables.
        anonymous_offset: pages from here on stand in for anonymous memory, those before for a file's.
        tables_bytes: size of the tables.
        signals: the actions of signals 1 to 64.
        vdso: code of the vDSO.
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
    vdso: bytes
