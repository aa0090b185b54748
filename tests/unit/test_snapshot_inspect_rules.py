"""The rules of an image, one by one. Each is broken in a valid image with correct checksums, and must be named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.snapshot_images import (
    ARENA,
    HEAP,
    LIBRARY,
    NONE,
    OBJECT,
    PAGE,
    RING,
    SHARED,
    STACK,
    VDSO,
    Draft,
    operation,
    refusal,
    whole,
)
from thawd.snapshot.inspect import reader
from thawd.snapshot.inspect.reader import ImageError, read

ZONE = 0x3F00_0000_0000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests overwrite."""
    return tmp_path_factory.mktemp("image") / "an.image"


def change(section: str, record: int, /, **values: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.records[section][record].update(values)


def facts(**values: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.process.update(values)


def header(**values: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.header.update(values)


def section(name: str, **values: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.sections.update({name: values})


def add(name: str, record: dict[str, Any], *, at: int | None = None) -> Callable[[Draft], None]:
    return lambda draft: draft.records[name].insert(len(draft.records[name]) if at is None else at, record)


def relative_path(draft: Draft) -> None:
    draft.records["files"][1]["path"] = draft.string("model.bin")


def endless_strings(draft: Draft) -> None:
    draft.strings += b"without an end"


def far_end(draft: Draft) -> int:
    return draft.data_offset + len(draft.data)


# For each rule: a change to a valid image, and the refusal that it causes.
RULES: dict[str, tuple[Callable[[Draft], Any], str]] = {
    "unknown flags of the image": (header(flags=4), "header: flags: unknown bits 0x4"),
    "data_offset within the tables": (header(data_offset=PAGE), "header: pages begin at byte 4096"),
    "data_offset between pages": (header(data_offset=4 * PAGE + 8), "header: pages begin at byte 16392"),
    "data_offset behind the end": (header(data_offset=1 << 40), "header: pages begin at byte 1099511627776"),
    "anonymous_offset before the pages": (header(anonymous_offset=PAGE), "header: anonymous_offset, 4096"),
    "anonymous_offset between pages": (header(anonymous_offset=4 * PAGE + 1), "header: anonymous_offset, 16385"),
    "anonymous_offset behind the end": (header(anonymous_offset=1 << 40), "header: anonymous_offset, 1099511627776"),
    "glibc out of the strings": (header(glibc=1 << 20), "header: glibc: its string is at 1048576"),
    "no version of glibc": (header(glibc=0), "header: the version of glibc is missing"),
    "records of another size": (
        section("operations", record_bytes=56),
        "section operations: has records of 56 bytes instead of 48",
    ),
    "a section in the header": (
        section("operations", offset=0),
        "section operations: begins at byte 0 instead of 4096",
    ),
    "a section with a gap before it": (
        section("vdso", offset=4 * PAGE),
        "section vdso: begins at byte 16384 instead of",
    ),
    "more records than the file holds": (section("threads", count=1 << 31), "section files: begins at byte"),
    "more text than the file holds": (section("strings", count=NONE), "header: pages begin at byte 16384"),
    "strings without an end": (endless_strings, "section strings: its last string has no end"),
    "a host key without an end": (lambda draft: draft.host.update(boot_id=b"x" * 40), "host key: boot_id: has no end"),
    "a folder out of the strings": (
        facts(working_folder=NONE),
        "the process's working folder: its string is at 4294967295",
    ),
    "a folder with a relative path": (
        facts(working_folder=1),
        "the process's working folder: '2.36' is not an absolute path",
    ),
    "a changed word between words": (change("words", 0, address=HEAP + 4), "section words, record 0: 0x"),
    "changed words out of order": (change("words", 1, address=HEAP), "section words, record 1: 0x"),
    "a changed word on nothing": (change("words", 0, address=PAGE), "is not mapped by any operation"),
    "a changed word in code": (change("words", 1, address=LIBRARY), "is not in private memory that may be written"),
    "a changed word in shared memory": (change("words", 1, address=OBJECT), "is not in private memory that may be"),
    "code that ends before it begins": (
        facts(code_end=1),
        "process: code ends at 0x1, before its beginning at 0x555400000000",
    ),
    "a heap beyond all addresses": (facts(brk_end=1 << 60), "process: brk ends at 0x1000000000000000"),
    "half a page of vDSO": (facts(vdso_bytes=PAGE // 2), "process: vdso, 2048 bytes"),
    "no vDSO": (facts(vdso_bytes=0), "process: it has no vDSO"),
    "a vDSO of another size": (facts(vdso_bytes=2 * PAGE), "the size or hash of the vDSO"),
    "a vDSO of another hash": (facts(vdso_hash=1), "the size or hash of the vDSO"),
    "vvar behind the vDSO": (facts(vvar_start=VDSO + PAGE), "process: vvar at 0x7ffe00001000 does not end before the"),
    "a stack that is not mapped": (facts(stack_start=STACK - 8), "process: stack_start: 0x7ffcfffffff8 is not mapped"),
    "a landing that is not mapped": (facts(landing=0x10000), "process: landing: 0x10000 is not mapped"),
    "a landing between words": (facts(landing=LIBRARY + 4), "process: landing 0x7f1000000004 or parcel"),
    "a parcel half mapped": (facts(parcel_bytes=6 * PAGE), "process: parcel: 0x7f0000001000 is not mapped"),
    "a parcel of half a page": (facts(parcel_bytes=100), "is not aligned"),
    "a umask that is none": (facts(umask=0o1000), "process: umask 0o1000 is above 0o777"),
    "an unknown kind of operation": (change("operations", 0, kind=6), "section operations, record 0: unknown kind 6"),
    "a reserved field in use": (change("operations", 3, reserved=1), "record 3: its reserved field is 1, not 0"),
    "an unknown protection": (change("operations", 0, protection=8), "record 0: protection: unknown bits 0x8"),
    "an unknown flag of an operation": (change("operations", 0, flags=4), "record 0: flags: unknown bits 0x4"),
    "unknown advice": (change("operations", 0, advice=512), "record 0: advice: unknown bits 0x200"),
    "an operation on half a page": (
        change("operations", 0, length=100),
        "operation 0 (file) at 0x7f1000000000: 100 bytes",
    ),
    "an operation on nothing": (change("operations", 0, length=0), "operation 0 (file) at 0x7f1000000000: 0 bytes"),
    "an address between pages": (change("operations", 0, address=LIBRARY + 1), "are not one or more whole pages"),
    "the null page": (
        change("operations", 8, address=0),
        "operation 8 (file_shared) at 0x0: its start or its end, 0x5000",
    ),
    "an address of the kernel": (change("operations", 8, address=0x7FFFFFFFE000), "its end, 0x800000003000"),
    "an end that wraps": (change("operations", 8, length=(1 << 64) - PAGE), "operation 8 (file_shared) at"),
    "memory in the zone": (change("operations", 8, address=ZONE + PAGE), "overlaps the address range (zone)"),
    "memory around the zone": (
        change("operations", 8, address=ZONE - PAGE),
        "(zone) that thaw needs for itself, 0x3f0000000000-",
    ),
    "memory over the vDSO": (change("operations", 8, address=VDSO), "overlaps the vDSO"),
    "memory over vvar": (change("operations", 8, address=VDSO - 8 * PAGE), "overlaps the vDSO"),
    "an offset between pages": (
        change("operations", 1, offset=100),
        "its offset 100 is not the offset of a page in a file",
    ),
    "an offset beyond all files": (
        change("operations", 1, offset=1 << 62),
        "is not the offset of a page in a file",
    ),
    "an index without need": (
        change("operations", 3, index=0),
        "operation 3 (anonymous) at 0x555500000000: has the index 0",
    ),
    "a file without its index": (change("operations", 0, index=NONE), "its index is None, but there are 4 files"),
    "a file that is not there": (change("operations", 0, index=4), "its index is 4, but there are 4 files"),
    "an object that is not there": (change("operations", 9, index=1), "its index is 1, but there are 1 objects"),
    "pages in the tables": (change("operations", 4, offset=PAGE), "operation 4 (data) at 0x555500000000: its contents"),
    "pages behind the end": (
        lambda draft: draft.records["operations"][4].update(offset=far_end(draft)),
        "its contents, 8192",
    ),
    "pages half behind the end": (change("operations", 11, length=1 << 30), "its contents, 1073741824 bytes"),
    "mappings that overlap": (
        change("operations", 1, address=LIBRARY + PAGE),
        "two mappings overlap at 0x7f1000001000",
    ),
    "the same mapping twice": (
        add("operations", operation("ANONYMOUS", ARENA, 1)),
        "two mappings overlap at 0x7f0000000000",
    ),
    "a page stored twice": (
        change("operations", 5, address=HEAP + PAGE),
        "two runs of stored pages overlap at 0x555500001000",
    ),
    "a page stored before it is mapped": (
        lambda draft: draft.records["operations"].reverse(),
        "comes before operation",
    ),
    "pages half in a mapping": (
        change("operations", 5, address=HEAP + 7 * PAGE, length=2 * PAGE),
        "are not all mapped",
    ),
    "pages half before a mapping": (
        change("operations", 4, address=HEAP - PAGE, length=2 * PAGE),
        "are not all mapped",
    ),
    "pages read into nothing": (
        change("operations", 11, address=STACK - PAGE),
        "operation 11 (copy) at 0x7ffcfffff000: 4096",
    ),
    "pages over a shared file": (
        change("operations", 5, address=SHARED),
        "lie in the mapping of operation 8, which is not private",
    ),
    "pages over an object": (
        change("operations", 5, address=OBJECT),
        "lie in the mapping of operation 9, which is not private",
    ),
    "contents of an object behind the end": (
        change("objects", 0, bytes=1 << 40),
        "object 0: its contents, 1099511627776",
    ),
    "contents of an object between pages": (change("objects", 0, offset=5 * PAGE + 1), "object 0: its contents"),
    "an object's name out of the strings": (
        change("objects", 0, name=1 << 30),
        "section objects, record 0: its string is",
    ),
    "an unknown seal": (change("objects", 0, seals=64), "section objects, record 0: seals: unknown bits 0x40"),
    "a file's name out of the strings": (change("files", 0, path=NONE), "section files, record 0: its string is at"),
    "a file with a relative path": (relative_path, "section files, record 1: 'model.bin' is not an absolute path"),
    "a file half checked": (
        change("files", 0, checked=2),
        "section files, record 0: checked: is 2, must be 0 or 1",
    ),
    "no threads": (lambda draft: draft.records["threads"].clear(), "section threads: is empty"),
    "a thread without an id": (change("threads", 0, tid=0), "thread 0: its id 0 is not valid"),
    "two threads of one id": (
        change("threads", 1, tid=4242),
        "its id 4242 is not valid, or another thread has the same id",
    ),
    "a thread that stands nowhere": (change("threads", 1, context=8), "thread 1: context: 0x8 is not mapped"),
    "a context between words": (change("threads", 1, context=ARENA + 4), "thread 1: its context, 0x7f0000000004"),
    "a thread's id nowhere": (change("threads", 1, clear_child_tid=8), "thread 1: clear_child_tid: 0x8 is not mapped"),
    "a robust list nowhere": (change("threads", 1, robust_list=8), "thread 1: robust_list: 0x8 is not mapped"),
    "a restartable sequence nowhere": (change("threads", 1, rseq=8), "thread 1: rseq: 0x8 is not mapped"),
    "a name without an end": (change("threads", 1, name=b"x" * 16), "section threads, record 1: name: has no end"),
    "too few signals": (lambda draft: draft.records["signals"].pop(), "section signals: has 63 records instead of 64"),
    "an unknown kind of descriptor": (
        change("descriptors", 0, kind=15),
        "section descriptors, record 0: unknown kind 15",
    ),
    "half close-on-exec": (change("descriptors", 0, close_on_exec=2), "record 0: close_on_exec: is 2"),
    "a negative number": (
        change("descriptors", 0, number=-1),
        "descriptor 0 (provided), number -1: its number is not above",
    ),
    "a number beyond all limits": (change("descriptors", 13, number=1 << 24), "or is not valid"),
    "a last number beyond all limits": (change("descriptors", 19, number=1 << 24), "number 16777216"),
    "a vDSO beyond all addresses": (facts(vdso_start=0x7FFFFFFFF000), "process: vdso, 4096 bytes"),
    "a number twice": (
        change("descriptors", 1, number=0),
        "descriptor 1 (provided), number 0: its number is not above the number of the record before it",
    ),
    "a file descriptor's file": (
        change("descriptors", 3, index=4),
        "descriptor 3 (file), number 3: its index 4 is not below 4",
    ),
    "a device's file": (change("descriptors", 4, index=NONE), "its index 4294967295 is not below 4"),
    "a descriptor's object": (change("descriptors", 5, index=1), "number 5: its index 1 is not below 1"),
    "an eventfd that is two things": (change("descriptors", 8, index=2), "number 8: its index 2 is not below 2"),
    "a copy of itself": (change("descriptors", 12, index=12), "is a copy of record 12, which is not an earlier record"),
    "half a socket pair": (
        change("descriptors", 10, index=3),
        "descriptor 10: its other end, descriptor 3, does not belong to the same socket pair",
    ),
    "a socket pair with nobody": (change("descriptors", 10, index=99), "descriptor 10: its other end, descriptor 99"),
    "contents of no pipe": (
        change("descriptors", 7, data_bytes=1),
        "number 7: holds 1 bytes; only an end of a socket pair, or the reading end of a pipe",
    ),
    "a pipe that overflows": (
        change("descriptors", 6, value=4),
        "number 6: holds 12 bytes; only an end of a socket pair, or the reading end of a pipe up to its capacity",
    ),
    "a pipe's contents behind the end": (
        change("descriptors", 6, data_offset=1 << 40),
        "number 6: its contents, 12 bytes",
    ),
    "a pipe's contents in the tables": (change("descriptors", 6, data_offset=PAGE), "number 6: its contents, 12 bytes"),
    "epoll that is none": (change("epoll", 0, epoll=8), "section epoll, record 0: descriptor 8 is not an epoll"),
    "epoll that watches nobody": (
        change("epoll", 1, number=99),
        "section epoll, record 1: watches descriptor 99, which is not open",
    ),
    "a socket that is not there": (change("descriptors", 14, index=2), "number 22: its index 2 is not below 2"),
    "an unknown revival": (change("sockets", 0, revival=4), "section sockets, record 0: unknown kind 4"),
    "a socket with half a port": (change("sockets", 0, any_port=2), "record 0: any_port: is 2"),
    "an address that does not fit": (change("sockets", 1, local_bytes=113), "record 1: has an address of 113 bytes"),
    "options that are not there": (
        change("sockets", 0, option_count=2),
        "record 0: its options are not all in the image",
    ),
    "a ring that is not there": (change("descriptors", 19, index=1), "number 27: its index 1 is not below 1"),
    "a socket pair whose other end has another": (
        change("descriptors", 11, index=3),
        "descriptor 10: its other end, descriptor 11, does not belong to the same socket pair",
    ),
    **{
        f"a ring with {name} = {value:#x}": (
            change("rings", 0, **{name: value}),
            "section rings, record 0: its mappings are empty",
        )
        for name, value in (
            ("rings", 0),
            ("rings", RING + 8),
            ("rings_bytes", 0),
            ("requests", 0),
            ("requests", RING + 8),
            ("requests_bytes", 0),
            ("requests_bytes", 100),
            ("entries", 0),
        )
    },
    "a ring of half a page": (
        change("rings", 0, rings_bytes=100),
        "section rings, record 0: its mappings are empty or not whole pages",
    ),
    "an option that does not fit": (
        change("options", 0, bytes=17),
        "section options, record 0: has an option of 17 bytes",
    ),
    "a reserved field of epoll in use": (
        change("epoll", 0, reserved=7),
        "section epoll, record 0: its reserved field is 7",
    ),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_broken_rule_is_refused_by_name(place: Path, rule: tuple[Callable[[Draft], None], str]) -> None:
    break_it, message = rule
    draft = whole()
    break_it(draft)
    found = refusal(place, draft.image())
    assert message in found
    assert found.endswith(". The image is damaged: remove it and freeze again.")


# Changes to a valid image that only just keep it valid.
JUST_SOUND: dict[str, Callable[[Draft], Any]] = {
    "nothing": lambda draft: None,
    "anonymous_offset at the end": lambda draft: draft.header.update(anonymous_offset=far_end(draft)),
    "an operation behind the null page": change("operations", 8, address=PAGE),
    "an operation at the last address": change("operations", 8, address=0x7FFFFFFFF000 - 5 * PAGE),
    "an operation below the zone": change("operations", 8, address=ZONE - 5 * PAGE),
    "an operation above the vDSO": change("operations", 8, address=VDSO + PAGE),
    "the last offset of a file": change("operations", 8, offset=(1 << 60) - 5 * PAGE),
    "code without a byte": facts(code_end=0x5554_0000_0000),
    "a heap to the last address": facts(brk_end=0x7FFFFFFFF000),
    "every bit of the umask": facts(umask=0o777),
    "a stack that starts at its last byte": facts(stack_start=STACK + 4 * PAGE - 1),
    "a parcel without a byte": facts(parcel_bytes=0),
    "the first thread of a system": change("threads", 0, tid=1),
    "a thread's id at the last byte of a mapping": change("threads", 1, clear_child_tid=ARENA + 6 * PAGE - 1),
    "the highest number": change("descriptors", 19, number=(1 << 24) - 1),
    "a pipe that is full": change("descriptors", 6, value=12),
    "contents of a socket pair": lambda draft: draft.records["descriptors"][10].update(
        data_bytes=5, data_offset=draft.records["descriptors"][6]["data_offset"]
    ),
}


@pytest.mark.parametrize("make", JUST_SOUND.values(), ids=JUST_SOUND.keys())
def test_what_just_keeps_every_rule_is_read(place: Path, make: Callable[[Draft], Any]) -> None:
    draft = whole()
    make(draft)
    place.write_bytes(draft.image())
    read(place)


def test_tables_that_would_take_all_memory_are_refused_unread(place: Path) -> None:
    draft = whole()
    size = (reader.TABLES_LIMIT_BYTES + (1 << 20)) // PAGE * PAGE
    draft.header.update(data_offset=size, file_bytes=size, anonymous_offset=size)
    draft.sections["strings"] = {"count": size - 4 * PAGE}
    image = bytearray(draft.image()[: 4 * PAGE])
    place.write_bytes(image)
    os.truncate(place, size)
    with pytest.raises(ImageError, match=r"its tables take \d+ bytes, more than 67108864"):
        read(place)
