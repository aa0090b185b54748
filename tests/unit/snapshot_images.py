"""Images for tests: a small writer that reads the layout from ``native/image.h`` and shares no code with the decoder.

`whole()` drafts an image with every kind of record. Tests change it and write it. A draft is written unchanged, with
correct checksums. So the decoder finds a broken rule, and not only a wrong checksum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.architecture import image_header
from tests.architecture.image_header import CField
from thawd.snapshot.inspect import reader
from thawd.snapshot.inspect.reader import Image

HEADER = image_header.parse(image_header.HEADER.read_text())
PAGE = 4096
NONE = 0xFFFFFFFF
FLAGS = {name: value for enum in HEADER.enums.values() for name, value in enum.items()}

HEAP, ARENA, LIBRARY, SHARED, OBJECT = (
    0x5555_0000_0000,
    0x7F00_0000_0000,
    0x7F10_0000_0000,
    0x7F20_0000_0000,
    0x7F21 << 32,
)
STACK, VDSO = 0x7FFD_0000_0000, 0x7FFE_0000_0000
VDSO_CODE = bytes(range(256)) * (PAGE // 256)
PIPED = b"not yet read"

RING = 0x7F30_0000_0000

Record = dict[str, Any]


def pack(name: str, values: Record) -> bytes:
    """Pack one struct. Missing fields are 0."""
    packed = bytearray(HEADER.size_of(name))
    for item in HEADER.structs[name]:
        if item.name in values:
            packed[item.offset : item.offset + item.size_bytes] = _pack(item, values[item.name])
    return bytes(packed)


def _pack(item: CField, value: Any) -> bytes:
    if item.type.startswith("struct "):
        many = value if item.length is not None else [value]
        return b"".join(pack(item.type[len("struct ") :], one) for one in many)
    return struct.pack("<" + item.code, *(value if isinstance(value, (list, tuple)) else (value,)))


def checksum(data: bytes) -> int:
    """Compute image.h's checksum, word by word."""
    value = len(data)
    for at in range(0, len(data), 8):
        value = ((value ^ int.from_bytes(data[at : at + 8], "little")) * 0x9E3779B97F4A7C15) % (1 << 64)
        value ^= value >> 29
    return value


@dataclass
class Draft:
    """An image being made.

    Attributes:
        header: fields of the header, in place of the computed values.
        sections: the same for the fields that say where a section is, by section.
        records: records by section, such as "operations".
        data: the pages, which begin at `data_offset`.
        rest: bytes after the header in its page.
    """

    header: Record = field(default_factory=dict)
    host: Record = field(default_factory=dict)
    process: Record = field(default_factory=dict)
    sections: dict[str, Record] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    vdso: bytes = b""
    strings: bytes = b""
    data: bytes = b""
    data_offset: int = 4 * PAGE
    rest: bytes = b""

    def string(self, value: str | bytes) -> int:
        """Add a string and return its offset."""
        offset = len(self.strings)
        self.strings += (value if isinstance(value, bytes) else value.encode()) + b"\0"
        return offset

    def store(self, contents: bytes) -> int:
        """Add whole pages of data and return their offset in the image."""
        offset = self.data_offset + len(self.data)
        self.data += contents + bytes(-len(contents) % PAGE)
        return offset

    def tables(self) -> tuple[bytes, list[Record]]:
        """Return all sections, and where each of them is."""
        content = bytearray()
        places: list[Record] = []
        for section, record in HEADER.records.items():
            name = section.removeprefix("SECTION_").lower()
            if record is None:
                body, size = getattr(self, name), 1
            else:
                body, size = b"".join(pack(record, item) for item in self.records[name]), HEADER.size_of(record)
            place = {"offset": PAGE + len(content), "count": len(body) // size, "record_bytes": size}
            places.append({**place, **self.sections.get(name, {})})
            content += body + bytes(0 if section == "SECTION_STRINGS" else -len(body) % 8)
        return bytes(content), places

    def image(self) -> bytes:
        """Return the bytes of the image."""
        tables, places = self.tables()
        assert PAGE + len(tables) <= self.data_offset
        header = {
            "magic": b"THAWDIMG",
            "layout": 4,
            "architecture": 62,
            "tables_checksum": checksum(tables),
            "file_bytes": self.data_offset + len(self.data),
            "data_offset": self.data_offset,
            "anonymous_offset": self.data_offset,
            "sections": places,
            "host": self.host,
            "process": self.process,
            **self.header,
        }
        packed = pack("image_header", header)
        whole = packed + self.rest + bytes(PAGE - len(packed) - len(self.rest)) + tables
        return sealed(whole + bytes(self.data_offset - len(whole)) + self.data)

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.image())
        path.chmod(0o600)
        return path


def sealed(image: bytes) -> bytes:
    """Return the same image with correct checksums, whatever was changed in it."""
    fields = {item.name: item for item in HEADER.structs["image_header"]}
    size = HEADER.size_of("image_header")
    strings = fields["sections"].offset + fields["sections"].size_bytes - HEADER.size_of("section_place")
    offset, count = struct.unpack_from("<QI", image, strings)
    header = bytearray(image[:size])
    struct.pack_into("<Q", header, fields["tables_checksum"].offset, checksum(image[PAGE : offset + count]))
    struct.pack_into("<Q", header, fields["header_checksum"].offset, 0)
    struct.pack_into("<Q", header, fields["header_checksum"].offset, checksum(bytes(header)))
    return bytes(header) + image[size:]


def operation(kind: str, address: int, pages: int, *, protection: int = 3, **values: Any) -> Record:
    """Return a record for `draft.records["operations"]`; `kind` as in C, without its prefix."""
    number = FLAGS["OPERATION_" + kind]
    base = {"address": address, "length": pages * PAGE, "kind": number, "protection": protection, "index": NONE}
    return {**base, **values}


def descriptor(kind: str, number: int, **values: Any) -> Record:
    """Return a record for `draft.records["descriptors"]`."""
    return {"number": number, "kind": FLAGS["DESCRIPTOR_" + kind], **values}


def whole() -> Draft:
    """Draft a valid image with every kind of operation, descriptor and table: 29 pages mapped, 12 stored."""
    draft = Draft()
    draft.string("")
    draft.header = {"glibc": draft.string("2.36"), "flags": 0}
    draft.host = {
        "kernel_release": b"6.18.0-thawd",
        "kernel_version": b"#1 SMP PREEMPT",
        "boot_id": b"6c1d3e0a-9f0e-4d49-8f4a-0d5f1a2b3c4d",
        "cpu_vendor": b"GenuineIntel",
        "cpu_signature": 0x806F8,
        "cpu_features": list(range(1, 15)),
        "xsave_bytes": 2696,
        "xcr0": 0x602E7,
        "xsave_places": [0, 0, 0, 0, 576, 256, *[0] * 58],
    }
    draft.process = {
        "code_start": 0x5554_0000_0000, "code_end": 0x5554_0000_2000,
        "data_start": 0x5554_0000_3000, "data_end": 0x5554_0000_4000,
        "brk_start": HEAP, "brk_end": HEAP + 8 * PAGE, "stack_start": STACK + 3 * PAGE,
        "arguments_start": STACK + 3 * PAGE + 100, "arguments_end": STACK + 3 * PAGE + 200,
        "environment_start": STACK + 3 * PAGE + 200, "environment_end": STACK + 3 * PAGE + 300,
        "vdso_start": VDSO, "vdso_bytes": PAGE, "vvar_start": VDSO - 4 * PAGE, "vvar_bytes": 4 * PAGE,
        "vdso_hash": checksum(VDSO_CODE), "landing": LIBRARY + 2 * PAGE + 64, "parcel": ARENA + PAGE,
        "parcel_bytes": PAGE, "frozen_unix_ns": 1_794_000_000_123_456_789, "register_permissions": 0x602E7,
        "working_folder": draft.string("/var/task"), "umask": 0o022,
        "monotonic_ns": 3_600_000_000_000, "boottime_ns": 3_700_000_000_000, "bounding": (1 << 41) - 1,
        "permitted": 1 << 10, "effective": 1 << 10, "inheritable": 0, "ambient": 0, "limits": [1024, 4096] * 16,
        "users": [1000, 1000, 1000], "groups": [100, 100, 100], "more_groups": draft.string("100 44 "),
        "no_privileges": 1, "seccomp_filters": 2, "dumpable": 1,
    }  # fmt: skip
    draft.vdso = VDSO_CODE
    draft.records = {name.removeprefix("SECTION_").lower(): [] for name, record in HEADER.records.items() if record}
    _add_memory(draft)
    _add_threads(draft)
    _add_descriptors(draft)
    draft.records["signals"] = [{} for _ in range(64)]
    draft.records["signals"][1] = {"handler": 0x7F1000000100, "flags": 0x14000000, "restorer": 0x7F1000000200}
    draft.records["signals"][12] = {"handler": 1}
    draft.records["words"] = [{"address": HEAP + 8, "value": 1}, {"address": ARENA + 16, "value": (1 << 64) - 1}]
    return draft


def _add_memory(draft: Draft) -> None:
    modified = 1_700_000_000_000_000_000
    for inode, path in enumerate(("/usr/lib/libthawd_freeze.so", "/var/task/model.bin", "/var/task", "/dev/null"), 7):
        draft.records["files"].append(
            {"device": 0x802, "inode": inode, "bytes": 9 * PAGE, "modified_ns": modified, "path": draft.string(path),
             "checked": int(path.startswith("/usr"))}
        )  # fmt: skip
    draft.records["objects"].append(
        {"bytes": 5000, "offset": draft.store(b"o" * 5000), "name": draft.string("memfd:cache"), "seals": 1 | 2}
    )
    draft.records["operations"] += [
        operation("FILE", LIBRARY, 2, protection=5, index=0),
        operation("FILE", LIBRARY + 2 * PAGE, 1, index=0, offset=2 * PAGE),
        operation("DATA", LIBRARY + 2 * PAGE, 1, offset=draft.store(b"l" * PAGE)),
        operation("ANONYMOUS", HEAP, 8),
        operation("DATA", HEAP, 2, offset=draft.store(b"h" * 2 * PAGE)),
        operation("DATA", HEAP + 4 * PAGE, 1, offset=draft.store(b"i" * PAGE)),
        operation("ANONYMOUS", ARENA, 6, advice=FLAGS["ADVICE_HUGEPAGE"], flags=FLAGS["OPERATION_NORESERVE"]),
        operation("DATA", ARENA, 4, offset=draft.store(b"a" * 4 * PAGE)),
        operation("FILE_SHARED", SHARED, 5, protection=1, index=1, offset=PAGE),
        operation("OBJECT", OBJECT, 2, index=0),
        operation("ANONYMOUS", STACK, 4, flags=FLAGS["OPERATION_STACK"]),
        operation("COPY", STACK + 3 * PAGE, 1, offset=draft.store(b"s" * PAGE)),
    ]


def _add_threads(draft: Draft) -> None:
    for tid, name, context in ((4242, b"python3.12", STACK + 3 * PAGE + 16), (4243, b"worker", ARENA + 5 * PAGE)):
        draft.records["threads"].append(
            {"context": context, "fs_base": ARENA + 64, "clear_child_tid": ARENA + 128, "robust_list": ARENA + 256,
             "rseq": ARENA + 512, "tid": tid, "name": name}
        )  # fmt: skip


def _add_descriptors(draft: Draft) -> None:
    piped = draft.store(PIPED)
    draft.records["descriptors"] += [
        *(descriptor("PROVIDED", number, index=NONE) for number in range(3)),
        descriptor("FILE", 3, index=2, open_flags=0o200000, close_on_exec=1),
        descriptor("DEVICE", 4, index=3, open_flags=2),
        descriptor("OBJECT", 5, index=0, open_flags=2, position=17),
        descriptor("PIPE_READ", 6, value=65536, data_offset=piped, data_bytes=len(PIPED)),
        descriptor("PIPE_WRITE", 7, value=65536, open_flags=1),
        descriptor("EVENTFD", 8, value=3, open_flags=2),
        descriptor("EPOLL", 9, index=NONE),
        descriptor("SOCKETPAIR", 10, index=11, open_flags=2),
        descriptor("SOCKETPAIR", 11, index=10, open_flags=2),
        descriptor("COPY", 20, index=8),
        descriptor("COPY", 21, index=12),
        descriptor("SOCKET", 22, index=0, open_flags=2),
        descriptor("SOCKET", 23, index=1, open_flags=2),
        descriptor("TIMER", 24, index=1, position=10**9, value=10**6),
        descriptor("SIGNALS", 25, value=1 << 11 | 1),
        descriptor("INOTIFY", 26),
        descriptor("RING", 27),
    ]
    tcp = {"family": 2, "type": 1, "protocol": 6, "peer_bytes": 16, "option_count": 1}
    draft.records["sockets"] += [
        {**tcp, "revival": FLAGS["SOCKET_ENDED"], "peer": sockaddr(5432)},
        {"family": 2, "type": 2, "protocol": 17, "revival": FLAGS["SOCKET_NEW"], "any_port": 1, "first_option": 1},
    ]
    draft.records["rings"] += [
        {
            "rings": RING,
            "rings_bytes": 3 * PAGE,
            "requests": RING + 4 * PAGE,
            "requests_bytes": 4 * PAGE,
            "entries": 256,
        }
    ]
    draft.records["options"] += [{"level": 6, "name": 1, "bytes": 4, "value": b"\1\0\0\0"}]
    draft.records["epoll"] += [{"epoll": 9, "number": number, "events": 1, "data": number} for number in (8, 6)]


def sockaddr(port: int) -> bytes:
    """Return the address of a port on 127.0.0.1. Source: ip(7)."""
    return struct.pack("<H", 2) + struct.pack(">H", port) + bytes([127, 0, 0, 1]) + bytes(8)


WHOLE = whole().image()


def read_bytes(place: Path, image: bytes) -> Image:
    """Decode these bytes as the file `place`."""
    place.write_bytes(image)
    return reader.read(place)


def refusal(place: Path, image: bytes) -> str:
    """Return the reason why these bytes are refused."""
    with pytest.raises(reader.ImageError) as caught:
        read_bytes(place, image)
    message = str(caught.value)
    assert message.startswith(f"{place}: ")
    return message.removeprefix(f"{place}: ")
