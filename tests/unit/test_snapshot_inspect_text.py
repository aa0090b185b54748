"""Descriptions and reports of images: mappings as people think of them, correct sums, aligned lines."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit import snapshot_images
from tests.unit.snapshot_images import (
    ARENA,
    FLAGS,
    HEAP,
    LIBRARY,
    OBJECT,
    PAGE,
    SHARED,
    STACK,
    WHOLE,
    operation,
    read_bytes,
    whole,
)
from thawd.snapshot.inspect.reader import Image, describe, read, text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests overwrite."""
    return tmp_path_factory.mktemp("image") / "an.image"


def test_operations_become_mappings_with_stored_pages(place: Path) -> None:
    description = describe(read_bytes(place, WHOLE))
    assert [
        (item["address"], item["bytes"] // PAGE, item["stored_pages"], item["what"], item["protection"])
        for item in description["mappings"]
    ] == [
        (hex(HEAP), 8, 3, "heap", "rw-p"),
        (hex(ARENA), 6, 4, "anonymous", "rw-p"),
        (hex(LIBRARY), 2, 0, "/usr/lib/libthawd_freeze.so", "r-xp"),
        (hex(LIBRARY + 2 * PAGE), 1, 1, "/usr/lib/libthawd_freeze.so", "rw-p"),
        (hex(SHARED), 5, 0, "/var/task/model.bin", "r--s"),
        (hex(OBJECT), 2, 0, "memfd:cache", "rw-s"),
        (hex(STACK), 4, 1, "stack", "rw-p"),
    ]
    assert [item["stacks_of"] for item in description["mappings"]] == [[], [4243], [], [], [], [], [4242]]


def test_every_stored_byte_is_counted_once(place: Path) -> None:
    image = read_bytes(place, WHOLE)
    description = describe(image)
    stored = sum(item.length for item in image.operations if item.kind in ("data", "copy"))
    stored += 8192 + len(snapshot_images.PIPED)
    assert description["memory"]["stored_bytes"] == stored
    assert sum(item["stored_bytes"] for item in description["kinds"]) == stored
    assert sum(item["stored_bytes"] for item in description["largest"]) == stored - len(snapshot_images.PIPED)
    assert {item["kind"]: item["stored_bytes"] for item in description["kinds"]} == {
        "anonymous": 4 * PAGE, "heap": 3 * PAGE, "stack": PAGE, "file": PAGE, "file_shared": 0, "object": 2 * PAGE,
        "pipe": len(snapshot_images.PIPED),
    }  # fmt: skip
    assert {key: value for key, value in description["memory"].items() if key.endswith("_bytes")} == {
        "mapped_bytes": 28 * PAGE, "private_bytes": 21 * PAGE, "anonymous_bytes": 18 * PAGE, "shared_bytes": 7 * PAGE,
        "stored_bytes": stored,
    }  # fmt: skip


def test_what_takes_most_space_comes_first(place: Path) -> None:
    description = describe(read_bytes(place, WHOLE))
    assert [item["what"] for item in description["largest"]] == [
        "anonymous", "heap", "memfd:cache", "/usr/lib/libthawd_freeze.so", "stack",
    ]  # fmt: skip
    assert [(item["path"], item["stored_bytes"], item["mapped_bytes"]) for item in description["files"]] == [
        ("/usr/lib/libthawd_freeze.so", PAGE, 3 * PAGE),
        ("/var/task/model.bin", 0, 5 * PAGE),
    ]


def test_a_mapping_that_is_stored_as_a_whole_keeps_its_name(place: Path) -> None:
    """If stored pages cover a whole mapping, freeze leaves out the mapping below them, and so the name of its file."""
    draft = whole()
    pages = draft.store(b"w" * 3 * PAGE)
    draft.header["anonymous_offset"] = pages + 2 * PAGE
    draft.records["operations"] += [
        operation("DATA", LIBRARY + 3 * PAGE, 1, offset=pages),
        operation("DATA", LIBRARY + 9 * PAGE, 1, offset=pages + PAGE),
        operation("DATA", HEAP - PAGE, 1, offset=pages + 2 * PAGE),
    ]
    found = {item["address"]: item for item in describe(read_bytes(place, draft.image()))["mappings"]}
    wholly = [found[hex(address)] for address in (LIBRARY + 3 * PAGE, LIBRARY + 9 * PAGE, HEAP - PAGE)]
    assert [(item["kind"], item["what"]) for item in wholly] == [
        ("file", "/usr/lib/libthawd_freeze.so"), ("file", "unnamed file"), ("anonymous", "anonymous"),
    ]  # fmt: skip
    assert [item["stored_pages"] for item in wholly] == [1, 1, 1]


def test_stored_pages_across_two_mappings_are_shared_out(place: Path) -> None:
    draft = whole()
    operations = draft.records["operations"]
    operations[3]["length"] = 4 * PAGE
    operations.insert(4, operation("ANONYMOUS", HEAP + 4 * PAGE, 4, protection=1))
    operations[5].update(address=HEAP + 2 * PAGE, length=3 * PAGE, offset=4 * PAGE)
    operations[6].update(address=HEAP + 7 * PAGE)
    found = {item["address"]: item["stored_pages"] for item in describe(read_bytes(place, draft.image()))["mappings"]}
    assert (found[hex(HEAP)], found[hex(HEAP + 4 * PAGE)]) == (2, 2)


def test_each_kind_of_descriptor_is_told_in_words(place: Path) -> None:
    description = describe(read_bytes(place, WHOLE))
    assert [item["what"] for item in description["descriptors"][2:]] == [
        "passed by the thawing process",
        "/var/task, read, at 0",
        "/dev/null",
        "memfd:cache, at 17",
        "pipe 0, reading end, 12 of 65536 bytes in it",
        "pipe 0, writing end",
        "count at 3",
        "watches 6, 8",
        "other end is descriptor 11",
        "other end is descriptor 10",
        "the same as descriptor 8",
        "the same as descriptor 20",
        "TCP, was connected to 127.0.0.1:5432: in a copy the connection has ended",
        "UDP, new in a copy",
        "set",
        "receives signals 1, 12",
        "watches nothing",
        "io_uring of 256 entries, no request pending",
    ]


def test_a_description_is_json_whatever_paths_hold(place: Path) -> None:
    draft = whole()
    draft.records["files"][1]["path"] = draft.string(b"/models/\xff\n\x1b[2J\xc3\xa9")
    description = describe(read_bytes(place, draft.image()))
    assert json.loads(json.dumps(description)) == description
    assert description["mappings"][4]["what"] == "/models/\\xff\n\x1b[2J\xe9"


def test_a_report_shows_control_characters_and_does_not_send_them(place: Path) -> None:
    draft = whole()
    draft.records["files"][1]["path"] = draft.string(b"/models/\xff\n\x1b[2J\xc3\xa9")
    draft.records["threads"][1]["name"] = b"\x1b]0;evil\a\r"
    draft.process["working_folder"] = draft.string(b"/\x9b31m")
    report = text(describe(read_bytes(place, draft.image())), rows=None)
    assert "/models/\\xff\\n\\x1b[2J\xe9, shared" in report
    assert "\\x1b]0;evil\\x07\\r" in report
    assert all(character.isprintable() for line in report.split("\n") for character in line)


def large(place: Path) -> Image:
    """An image of a realistic size. Its pages are a hole in the file."""
    mib = 1 << 20
    draft = whole()
    start = draft.data_offset
    file, anonymous, end = start + len(draft.data), start + 16 * mib, start + 300 * mib
    draft.header.update(file_bytes=end, anonymous_offset=anonymous)
    draft.records["files"] += [
        {"path": draft.string("/usr/lib/libtorch_cpu.so"), "bytes": 400 * mib},
        {"path": draft.string("/models/vit-gpt2.safetensors"), "bytes": 957 * mib, "checked": 1},
    ]
    torch, model = 0x7F40_0000_0000, 0x7F50_0000_0000
    draft.records["operations"] += [
        operation("FILE", torch, 390 * mib // PAGE, protection=5, index=4),
        operation("DATA", torch + 390 * mib, 9 * mib // PAGE, protection=1, offset=file),
        operation("FILE", model, 957 * mib // PAGE, protection=1, index=5),
        operation("ANONYMOUS", 0x7F60_0000_0000, 1536 * mib // PAGE, advice=FLAGS["ADVICE_DONTDUMP"]),
        operation("DATA", 0x7F60_0000_0000, 250 * mib // PAGE, offset=anonymous),
        operation("ANONYMOUS", 0x7F70_0000_0000, 8 * mib // PAGE),
    ]
    draft.records["threads"] += [
        {"tid": 5000 + number, "name": b"omp", "context": 0x7F70_0000_0000 + 8 * number} for number in range(9)
    ]
    place.write_bytes(draft.image())
    os.truncate(place, end)
    image = read(place)
    return replace(image, path="/snapshots/captions.image", mode=0o600, owner=1000, disk_bytes=275 * mib)


def test_a_report_reads_like_this(place: Path) -> None:
    assert text(describe(large(place)), rows=4) == REPORT


def test_a_report_of_all_rows_has_every_mapping(place: Path) -> None:
    description = describe(large(place))
    report = text(description, rows=None)
    assert "more" not in report
    assert all(re.search(rf"^  {item['address']} ", report, re.MULTILINE) for item in description["mappings"])


def test_a_report_of_little_says_none(place: Path) -> None:
    draft = whole()
    draft.records.update(descriptors=[], epoll=[], objects=[], words=[], files=draft.records["files"])
    draft.records["operations"] = [
        operation("ANONYMOUS", address, 8) for address in (STACK, ARENA, LIBRARY)
    ]  # fmt: skip
    report = text(describe(read_bytes(place, draft.image())))
    assert "Largest parts, MiB\n  none\n" in report
    assert "Mapped files, MiB\n  none\n" in report
    assert "Descriptors\n  none\n" in report


REPORT = """\
/snapshots/captions.image
  frozen 2026-11-06 21:20:00 UTC, process 4242, 11 threads, 20 descriptors, 12 mappings in 18 operations
  file of 300.02 MiB, taking 275.00 on disk; 259.04 MiB of memory in it, mapped at the thaw
  layout 4, x86-64, mode 0600, owner 1000

Memory, MiB
  kind            mappings    mapped  stored
  anonymous              3  1,544.02  250.02
  heap                   1      0.03    0.01
  stack                  1      0.02   <0.01
  files, private         5  1,356.01    9.00
  files, shared          1      0.02    0.00
  memory objects         1     <0.01   <0.01
  in pipes               0      0.00   <0.01
  total                 12  2,900.11  259.04

Largest parts, MiB
  stored          mapped  address               what
  250.00  97 %  1,536.00  0x7f6000000000  rw-p  anonymous, dontdump
    9.00   3 %      9.00  0x7f4018600000  r--p  /usr/lib/libtorch_cpu.so
    0.02  <1 %      0.02  0x7f0000000000  rw-p  anonymous, stack of 4243, hugepage
    0.01  <1 %      0.03  0x555500000000  rw-p  heap
  and 3 more, with 0.02 MiB stored

Mapped files, MiB
  stored  mapped  path
    9.00  399.00  /usr/lib/libtorch_cpu.so
   <0.01    0.01  /usr/lib/libthawd_freeze.so
    0.00  957.00  /models/vit-gpt2.safetensors
    0.00    0.02  /var/task/model.bin

Threads
    id  name
  4242  python3.12
  4243  worker
  5000  omp
  5001  omp
  and 7 more

Descriptors
  number  kind        what
       0  provided    passed by the thawing process
       1  provided    passed by the thawing process
       2  provided    passed by the thawing process
       3  file        /var/task, read, at 0
       4  device      /dev/null
       5  object      memfd:cache, at 17
       6  pipe read   pipe 0, reading end, 12 of 65536 bytes in it
       7  pipe write  pipe 0, writing end
       8  eventfd     count at 3
       9  epoll       watches 6, 8
      10  socketpair  other end is descriptor 11
      11  socketpair  other end is descriptor 10
      20  copy        the same as descriptor 8
      21  copy        the same as descriptor 20
      22  socket      TCP, was connected to 127.0.0.1:5432: in a copy the connection has ended
      23  socket      UDP, new in a copy
      24  timer       set
      25  signals     receives signals 1, 12
      26  inotify     watches nothing
      27  ring        io_uring of 256 entries, no request pending

Process
  working folder       /var/task
  umask                0022
  brk                  0x555500000000, 0.03 MiB
  signals handled      2
  signals ignored      13
  registers requested  0x602e7
  space for arguments  4096 bytes

Frozen on
  kernel     6.18.0-thawd #1 SMP PREEMPT
  boot       6c1d3e0a-9f0e-4d49-8f4a-0d5f1a2b3c4d
  processor  GenuineIntel 0x806f8, features 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8 0x9 0xa 0xb 0xc 0xd 0xe
  registers  2696 bytes, xcr0 0x602e7
  glibc      2.36
"""
