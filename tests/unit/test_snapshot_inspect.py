"""The decoder of images: it returns everything in a valid image, and refuses a damaged one, whatever the damage."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit import snapshot_images
from tests.unit.interpreters_here import INTERPRETERS
from tests.unit.snapshot_images import (
    ARENA,
    HEADER,
    HEAP,
    LIBRARY,
    PAGE,
    SHARED,
    STACK,
    VDSO,
    WHOLE,
    read_bytes,
    refusal,
    sealed,
    whole,
)
from thawd.snapshot.inspect import reader
from thawd.snapshot.inspect.reader import ImageError, describe, read, text

TABLES_END = PAGE + len(whole().tables()[0])
many = settings(max_examples=300, deadline=None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests overwrite."""
    return tmp_path_factory.mktemp("image") / "an.image"


# What the decoder returns


def test_memory_comes_back_as_it_was_written(place: Path) -> None:
    image = read_bytes(place, WHOLE)
    assert [item.kind for item in image.operations] == [
        "file", "file", "data", "anonymous", "data", "data", "anonymous", "data", "file_shared", "object", "anonymous",
        "copy",
    ]  # fmt: skip
    code, arena, shared, stack = (image.operations[index] for index in (0, 6, 8, 10))
    assert (code.address, code.length, code.offset, code.protection) == (LIBRARY, 2 * PAGE, 0, "r-x")
    assert code.index is not None
    assert image.files[code.index].path == "/usr/lib/libthawd_freeze.so"
    assert (arena.flags, arena.advice, arena.index) == (("noreserve",), ("hugepage",), None)
    assert (shared.address, shared.offset, shared.index, shared.protection) == (SHARED, PAGE, 1, "r--")
    assert stack.flags == ("stack",)
    file = image.files[0]
    assert (file.device, file.inode, file.bytes, file.modified_ns) == (0x802, 7, 9 * PAGE, 1_700_000_000_000_000_000)
    assert [file.checked for file in image.files] == [True, False, False, False]
    (item,) = image.objects
    assert (item.bytes, item.stored_bytes, item.name, item.seals) == (5000, 8192, "memfd:cache", ("seal", "shrink"))


def test_threads_and_signals_come_back_as_they_were_written(place: Path) -> None:
    image = read_bytes(place, WHOLE)
    assert [(thread.tid, thread.name) for thread in image.threads] == [(4242, "python3.12"), (4243, "worker")]
    leader = image.threads[0]
    assert (leader.context, leader.fs_base, leader.gs_base) == (STACK + 3 * PAGE + 16, ARENA + 64, 0)
    assert (leader.clear_child_tid, leader.robust_list, leader.rseq) == (ARENA + 128, ARENA + 256, ARENA + 512)
    action = image.signals[1]
    assert (action.handler, action.flags, action.restorer) == (0x7F1000000100, 0x14000000, 0x7F1000000200)
    assert len(image.signals) == 64


def test_descriptors_come_back_as_they_were_written(place: Path) -> None:
    image = read_bytes(place, WHOLE)
    assert [(item.number, item.kind) for item in image.descriptors[2:]] == [
        (2, "provided"), (3, "file"), (4, "device"), (5, "object"), (6, "pipe_read"), (7, "pipe_write"), (8, "eventfd"),
        (9, "epoll"), (10, "socketpair"), (11, "socketpair"), (20, "copy"), (21, "copy"),
        (22, "socket"), (23, "socket"), (24, "timer"), (25, "signals"), (26, "inotify"), (27, "ring"),
    ]  # fmt: skip
    ended, fresh = image.sockets
    assert (ended.revival, ended.peer, ended.local, fresh.revival, fresh.any_port) == (
        "ended", snapshot_images.sockaddr(5432), b"", "new", True,
    )  # fmt: skip
    assert [(item.level, item.name, item.value) for item in image.options] == [(6, 1, b"\1\0\0\0")]
    folder, cache, pipe = image.descriptors[3], image.descriptors[5], image.descriptors[6]
    assert (folder.open_flags, folder.close_on_exec, folder.index) == (0o200000, True, 2)
    assert (cache.position, cache.close_on_exec) == (17, False)
    assert (pipe.value, pipe.data_bytes) == (65536, len(snapshot_images.PIPED))
    assert place.read_bytes()[pipe.data_offset :].startswith(snapshot_images.PIPED)
    assert [(watch.epoll, watch.number, watch.events, watch.data) for watch in image.epoll] == [
        (9, 8, 1, 8),
        (9, 6, 1, 6),
    ]


def test_header_host_and_process_come_back_as_they_were_written(place: Path) -> None:
    image = read_bytes(place, WHOLE)
    assert (image.layout, image.architecture, image.flags, image.file_bytes) == (4, "x86-64", (), len(WHOLE))
    assert (image.data_offset, image.anonymous_offset) == (4 * PAGE, 4 * PAGE)
    assert image.vdso == snapshot_images.VDSO_CODE
    host, process = image.host, image.process
    assert (host.glibc, host.kernel_release, host.kernel_version) == ("2.36", "6.18.0-thawd", "#1 SMP PREEMPT")
    assert (host.cpu_vendor, host.cpu_signature, host.cpu_features) == ("GenuineIntel", 0x806F8, tuple(range(1, 15)))
    assert (host.xsave_bytes, host.xcr0, host.xsave_places[4:6]) == (2696, 0x602E7, (576, 256))
    assert (process.working_folder, process.umask, process.frozen_unix_ns) == ("/var/task", 0o22, 1794000000123456789)
    assert (process.brk_start, process.brk_end, process.vdso_start) == (HEAP, HEAP + 8 * PAGE, VDSO)
    assert process.register_permissions == 0x602E7
    assert (process.monotonic_ns, process.boottime_ns) == (3600 * 10**9, 3700 * 10**9)
    assert (process.bounding, process.permitted, process.no_privileges, process.seccomp_filters) == (
        (1 << 41) - 1, 1 << 10, 1, 2,
    )  # fmt: skip
    assert (process.limits, process.users, process.more_groups) == ((1024, 4096) * 16, (1000,) * 3, "100 44 ")
    assert (process.landing, process.parcel, process.parcel_bytes) == (LIBRARY + 2 * PAGE + 64, ARENA + PAGE, PAGE)


def test_a_path_that_is_no_utf_8_comes_back_byte_for_byte(place: Path) -> None:
    draft = whole()
    draft.records["files"][1]["path"] = draft.string(b"/models/\xff\xfe.bin")
    assert os.fsencode(read_bytes(place, draft.image()).files[1].path) == b"/models/\xff\xfe.bin"


# Files that are not images


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"none\.image: cannot be opened: No such file or directory\. Check the path"):
        read(tmp_path / "none.image")
    with pytest.raises(ImageError, match=r"cannot be opened: .*embedded null"):
        read("a\0b")


@pytest.mark.parametrize("what", ["folder", "pipe", "device"])
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "thing"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path = Path("/dev/zero")
    with pytest.raises(ImageError, match="is not a regular file"):
        read(path)


def test_another_file_is_no_image(place: Path) -> None:
    assert refusal(place, b"\x7fELF" + bytes(5000)) == (
        "is not an image: it does not begin with THAWDIMG. Give the path of an image."
    )


def header_field(image: bytes, name: str, value: bytes) -> bytes:
    """Return the image with other bytes in a field of its header, and correct checksums."""
    offset = next(item.offset for item in HEADER.structs["image_header"] if item.name == name)
    return sealed(image[:offset] + value + image[offset + len(value) :])


def test_an_image_of_another_layout_is_refused_by_version_and_not_as_damaged(place: Path) -> None:
    # It is unknown where the checksum of another layout is, so it must not be checked.
    for newer in (header_field(WHOLE, "layout", b"\5\0\0\0"), WHOLE[:8] + b"\5" + WHOLE[9:]):
        assert refusal(place, newer) == "has image layout 5, but this thawd reads layout 4. Freeze again."


def test_an_image_of_another_architecture_is_refused_by_name(place: Path) -> None:
    message = refusal(place, header_field(WHOLE, "architecture", (183).to_bytes(4, "little")))
    assert message.startswith(
        "is an image of architecture 183 (aarch64), but this thawd reads 62 (x86-64). Use it on the machine"
    )
    assert "architecture 7 (unknown)" in refusal(place, header_field(WHOLE, "architecture", b"\7"))


def test_a_file_that_has_grown_is_refused(place: Path) -> None:
    assert refusal(place, WHOLE + b"\0").startswith(
        f"has grown: {len(WHOLE) + 1} bytes, but its header says {len(WHOLE)}."
    )


# Damage


@many
@given(st.integers(0, len(WHOLE) - 1))
@example(0)
@example(7)
@example(HEADER.size_of("image_header") - 1)
@example(HEADER.size_of("image_header"))
@example(PAGE)
def test_an_image_cut_off_anywhere_is_refused_as_cut_off(place: Path, size: int) -> None:
    assert refusal(place, WHOLE[:size]).startswith(f"is cut off: {size} bytes")


@many
@given(st.integers(0, TABLES_END - 1), st.integers(1, 255))
def test_a_changed_byte_in_header_or_tables_is_refused(place: Path, offset: int, change: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[offset] ^= change
    refusal(place, bytes(damaged))


@many
@given(st.integers(0, TABLES_END - 64), st.binary(min_size=1, max_size=64))
def test_changed_bytes_in_header_or_tables_are_refused(place: Path, offset: int, change: bytes) -> None:
    damaged = WHOLE[:offset] + change + WHOLE[offset + len(change) :]
    if damaged != WHOLE:
        refusal(place, damaged)


def test_the_pages_are_not_looked_at(place: Path) -> None:
    assert read_bytes(place, WHOLE[: 4 * PAGE] + bytes(len(WHOLE) - 4 * PAGE)).operations


@many
@given(st.binary(max_size=3 * PAGE), st.sampled_from([0, 8, 12, 16]))
def test_random_bytes_are_refused(place: Path, random: bytes, kept: int) -> None:
    refusal(place, WHOLE[:kept] + random)


INTERESTING = [
    0,
    1,
    2,
    7,
    255,
    PAGE,
    PAGE - 1,
    1 << 31,
    0xFFFFFFFF,
    1 << 47,
    1 << 63,
    (1 << 64) - 1,
    HEAP,
    len(WHOLE),
]
words = st.one_of(st.sampled_from(INTERESTING), st.integers(0, (1 << 64) - 1))
places = st.one_of(st.integers(16, HEADER.size_of("image_header") - 8), st.integers(PAGE, TABLES_END - 8))


@settings(max_examples=300)
@given(st.lists(st.tuples(places, words, st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=4))
def test_a_forged_image_is_refused_or_can_be_described(place: Path, changes: list[tuple[int, int, int]]) -> None:
    """A forger can correct the checksums, but must still follow the rules.

    An image that follows them must cause no error later.
    """
    forged = bytearray(WHOLE)
    for offset, word, size in changes:
        forged[offset & -size : (offset & -size) + size] = word.to_bytes(8, "little")[:size]
    try:
        image = read_bytes(place, sealed(bytes(forged)))
    except ImageError:
        return
    description = describe(image)
    json.dumps(description)
    assert text(description, rows=None)


def test_tables_of_another_image_are_refused(place: Path) -> None:
    other = whole()
    other.records["operations"][0]["protection"] = 7
    mixed = WHOLE[:PAGE] + other.image()[PAGE:]
    assert refusal(place, mixed) == (
        "tables: their checksum does not match. The image is damaged: remove it and freeze again."
    )
    assert "tables: their checksum" in refusal(place, other.image()[:PAGE] + WHOLE[PAGE:])


def test_the_rest_of_the_headers_page_is_zero(place: Path) -> None:
    draft = whole()
    draft.rest = bytes(100) + b"\1"
    assert "header: the rest of its page" in refusal(place, draft.image())


# Which machines it runs on


ALONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from thawd.snapshot.inspect import reader as inspect
description = inspect.describe(inspect.read(sys.argv[2]))
loaded = sorted(name for name in sys.modules if name.startswith("thawd."))
print(json.dumps([description, inspect.text(description), loaded]))
"""


@pytest.mark.parametrize("python", INTERPRETERS)
def test_any_supported_python_reads_an_image_without_another_package(place: Path, python: str) -> None:
    description = describe(read_bytes(place, WHOLE))
    sources = str(Path(reader.__file__).parents[3])
    command = [python, "-I", "-S", "-W", "error", "-c", ALONE, sources, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    found, report, loaded = json.loads(done.stdout)
    assert (found, report) == (description, text(description))
    assert all(name.startswith("thawd.snapshot") for name in loaded)
