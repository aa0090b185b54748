"""The layout of images (files with frozen processes): ``native/image.h``'s structs, kinds and flags, defined in Python.

This module contains only the layout and the checksum. It shares no code with the C code that writes images, so that a
mistake on either side becomes visible. ``tests/architecture/test_snapshot_format.py`` compares it with ``image.h`` and
``docs/reference/snapshot-format.md``, name by name. Used for reading images; no invocation needs it. Standard library
only, Python 3.9 and later.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

MAGIC = b"THAWDIMG"
LAYOUT = 4
ARCHITECTURE_X86_64 = 62
ARCHITECTURES = {ARCHITECTURE_X86_64: "x86-64", 183: "aarch64", 243: "riscv64"}  # <elf.h>, EM_*
PAGE_BYTES = 4096
# The zone: the addresses that thaw itself uses while it builds a copy's memory. No memory of an image may be there.
ZONE_START = 0x3F0000000000
ZONE_BYTES = 0x000100000000
NO_INDEX = 0xFFFFFFFF
TIMER_CANCELLED_BY_SET = 256
SOCKET_ADDRESS_BYTES = 112
SOCKET_OPTION_BYTES = 16
SIGNALS = 64

# Names of the enumerators in image.h, in order, in lower case and without their prefix.
SECTIONS = (
    "operations", "threads", "files", "objects", "descriptors", "epoll", "sockets", "options", "rings", "signals",
    "words", "vdso", "strings",
)  # fmt: skip
OPERATION_KINDS = ("anonymous", "file", "file_shared", "object", "data", "copy")
DESCRIPTOR_KINDS = (
    "provided", "file", "device", "object", "pipe_read", "pipe_write", "eventfd", "epoll", "socketpair", "copy",
    "socket", "timer", "signals", "inotify", "ring",
)  # fmt: skip
# What a copy gets for a socket: one whose connection has ended, a new one, one that listens on a port that the kernel
# chooses, or one to which nothing can connect.
SOCKET_REVIVALS = ("ended", "new", "listening", "mute")

# The names of flags, by bit.
IMAGE_FLAGS = {1: "copy", 2: "inside_vdso"}
OPERATION_FLAGS = {1: "noreserve", 2: "stack"}
ADVICE = {
    1: "dontfork",
    2: "dontdump",
    4: "hugepage",
    8: "nohugepage",
    16: "mergeable",
    32: "wipeonfork",
    64: "locked",
    128: "sequential",
    256: "random",
}
PROTECTION = {1: "read", 2: "write", 4: "exec"}  # mmap(2), PROT_*
SEALS = {1: "seal", 2: "shrink", 4: "grow", 8: "write", 16: "future_write", 32: "exec"}  # fcntl(2), F_SEAL_*

# Each field is `name:code`. The code is a format of the module `struct`, such as "Q" or "16s", or the name of a struct
# in this table. "*9" after the name of a struct repeats that struct nine times.
FIELDS = {
    "section_place": "offset:Q count:I record_bytes:I",
    "host_key": (
        "kernel_release:72s kernel_version:72s boot_id:40s cpu_vendor:16s cpu_signature:I cpu_features:14I "
        "xsave_bytes:I xcr0:Q xsave_places:64I"
    ),
    "process_facts": (
        "code_start:Q code_end:Q data_start:Q data_end:Q brk_start:Q brk_end:Q stack_start:Q "
        "arguments_start:Q arguments_end:Q environment_start:Q environment_end:Q "
        "vdso_start:Q vdso_bytes:Q vvar_start:Q vvar_bytes:Q vdso_hash:Q landing:Q parcel:Q parcel_bytes:Q "
        "frozen_unix_ns:Q register_permissions:Q working_folder:I umask:I monotonic_ns:Q boottime_ns:Q "
        "bounding:Q permitted:Q effective:Q inheritable:Q ambient:Q limits:32Q users:3I groups:3I more_groups:I "
        "secure_bits:I no_privileges:I seccomp_filters:I dumpable:I subreaper:I no_huge_pages:I fixed_code:I "
        "death_signal:I personality:I raw_ns:Q"
    ),
    "image_header": (
        "magic:8s layout:I architecture:I header_checksum:Q tables_checksum:Q file_bytes:Q data_offset:Q "
        "anonymous_offset:Q flags:I glibc:I sections:section_place*13 host:host_key process:process_facts"
    ),
    "operation": "address:Q length:Q offset:Q kind:I index:I protection:I flags:I advice:I reserved:I",
    "thread_state": (
        "context:Q fs_base:Q gs_base:Q clear_child_tid:Q robust_list:Q rseq:Q tid:i policy:I name:16s "
        "cpu_ns:Q timer_slack_ns:Q nice:i io_priority:I"
    ),
    "file_identity": "device:Q inode:Q bytes:Q modified_ns:q path:I checked:I",
    "memory_object": "bytes:Q offset:Q name:I seals:I",
    "descriptor": (
        "number:i kind:I open_flags:I close_on_exec:I position:Q value:Q data_offset:Q data_bytes:I index:I"
    ),
    "epoll_watch": "epoll:i number:i events:I reserved:I data:Q",
    "socket_state": (
        "family:I type:I protocol:I revival:I backlog:I first_option:I option_count:I local_bytes:I peer_bytes:I "
        "any_port:I local:112s peer:112s"
    ),
    "ring_state": ("rings:Q rings_bytes:Q requests:Q requests_bytes:Q entries:I completions:I submitted:I reserved:I"),
    "socket_option": "level:i name:i bytes:I reserved:I value:16s",
    "signal_action": "handler:Q flags:Q restorer:Q mask:Q",
    "changed_word": "address:Q value:Q",
}

# The struct of each section's records; sections that are not listed hold bytes.
RECORDS = {
    "operations": "operation",
    "threads": "thread_state",
    "files": "file_identity",
    "objects": "memory_object",
    "descriptors": "descriptor",
    "epoll": "epoll_watch",
    "sockets": "socket_state",
    "options": "socket_option",
    "rings": "ring_state",
    "signals": "signal_action",
    "words": "changed_word",
}

_MASK = 0xFFFFFFFFFFFFFFFF
_FACTOR = 0x9E3779B97F4A7C15


class Field(NamedTuple):
    """A field of a struct.

    Attributes:
        name: the field's name, as in C.
        offset: offset in the struct, bytes.
        code: format of the module `struct`, or the name of another struct of `FIELDS`.
        repeat: how many of these structs follow each other; 1 for a format of the module `struct`.
        size_bytes: size of the whole field.
    """

    name: str
    offset: int
    code: str
    repeat: int
    size_bytes: int


def size_of(name: str) -> int:
    """Size of a struct of `FIELDS`, bytes. The C structs are laid out so that no field needs padding."""
    return sum(field.size_bytes for field in fields(name))


def fields(name: str) -> list[Field]:
    """The fields of a struct of `FIELDS`, in order."""
    found: list[Field] = []
    offset = 0
    for item in FIELDS[name].split():
        field, code = item.split(":")
        code, _, repeat = code.partition("*")
        one = size_of(code) if code in FIELDS else struct.calcsize("<" + code)
        found.append(Field(field, offset, code, int(repeat or 1), one * int(repeat or 1)))
        offset += found[-1].size_bytes
    return found


def unpack(name: str, data: bytes) -> dict[str, Any]:
    """Unpack one struct of `FIELDS`; `data` is exactly as long as the struct.

    Returns:
        The values by field name: numbers, bytes of text, tuples of numbers, and nested structs as dicts.
    """
    values: dict[str, Any] = {}
    for field in fields(name):
        part = data[field.offset : field.offset + field.size_bytes]
        if field.code in FIELDS:
            size = field.size_bytes // field.repeat
            structs = [unpack(field.code, part[at : at + size]) for at in range(0, len(part), size)]
            values[field.name] = structs if field.repeat > 1 else structs[0]
        else:
            numbers = struct.unpack("<" + field.code, part)
            values[field.name] = numbers if len(numbers) > 1 else numbers[0]
    return values


def unpack_all(name: str, data: bytes) -> Iterator[dict[str, Any]]:
    """Unpack all records of a section; the struct `name` has no nested structs, and `data` holds whole records."""
    names = [field.name for field in fields(name)]
    codes = "<" + "".join(field.code for field in fields(name))
    for values in struct.iter_unpack(codes, data):
        yield dict(zip(names, values))  # noqa: B905 - `strict` came with Python 3.10


def unpack_pairs(name: str, data: bytes) -> Iterator[tuple[int, int]]:
    """Unpack all records of a section whose struct `name` has two numbers; `data` holds whole records."""
    one, other = (field.code for field in fields(name))
    return struct.iter_unpack(f"<{one}{other}", data)


def checksum(data: bytes) -> int:
    """64-bit checksum over little-endian words, the last one padded with zeros. Detects damage, not forgery."""
    value = len(data)
    padded = data + bytes(-len(data) % 8)
    for (word,) in struct.iter_unpack("<Q", padded):
        value = (value ^ word) * _FACTOR & _MASK
        value ^= value >> 29
    return value
