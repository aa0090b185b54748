"""Claims about the pages that a spare touches in advance: which ones the kernel reports, and how they are touched."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from thawd.environments.starts import touched_pages
from thawd.runtime import spare
from thawd.runtime.channel import Channel
from thawd.wire import frames

PAGE = mmap.PAGESIZE
PAGES = 64
# Maps the file privately and prints its address, once one page is read and another one is written.
READS_AND_WRITES = """
import ctypes, mmap, sys
file = open(sys.argv[1], "r+b")
memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
memory[3 * mmap.PAGESIZE]
memory[40 * mmap.PAGESIZE] = 1
memory[41 * mmap.PAGESIZE] = 1
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.read()
"""


def _pages(ranges: bytes) -> set[int]:
    return {page for start, end in struct.iter_unpack("<QQ", ranges) for page in range(start, end, PAGE)}


def _lists_pages() -> bool:
    try:
        touched_pages.touched(os.getpid())
    except OSError:
        return False
    return True


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A process that has read and written pages of a file, and the address of the file in its memory."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * PAGES * PAGE)
    command = [sys.executable, "-c", READS_AND_WRITES, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield child.pid, int(child.stdout.readline())
        child.kill()


@pytest.mark.skipif(not _lists_pages(), reason="this kernel does not list a process's pages")
def test_the_pages_that_a_process_has_read_and_written_are_told_apart(
    process: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, address = process
    written, read = map(_pages, touched_pages.touched(pid))
    assert {address + 40 * PAGE, address + 41 * PAGE} <= written
    assert address + 3 * PAGE in read
    assert not written & read
    assert not any(
        address <= page < address + PAGES * PAGE for page in written - {address + n * PAGE for n in (40, 41)}
    )
    monkeypatch.setattr(touched_pages, "_MOST_WRITTEN_BYTES", PAGE)
    assert len(_pages(touched_pages.touched(pid)[0])) == 1
    monkeypatch.setattr(touched_pages, "_MOST_RANGES", 3)
    assert sum(len(ranges) for ranges in touched_pages.touched(pid)) == 3 * 16


def _private_file(tmp_path: Path) -> tuple[mmap.mmap, int]:
    (tmp_path / "mapped").write_bytes(bytes(range(256)) * (PAGES * PAGE // 256))
    with (tmp_path / "mapped").open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_a_spare_touches_pages_without_changing_them_and_goes_on(tmp_path: Path) -> None:
    memory, address = _private_file(tmp_path)
    contents = bytes(memory)
    written = struct.pack("<4Q", 4096, 8192, address, address + 8 * PAGE)  # this process has no memory at 4096
    platform, runtime = socket.socketpair()
    channel = Channel(runtime.detach())
    channel.wait_by_poll()
    platform.sendall(frames.encode(frames.TOUCH, {"written": len(written)}, written))
    frame = channel.receive()
    assert frame is not None
    spare.touch(frame, channel)
    assert bytes(memory) == contents
    if _lists_pages():
        assert {address + n * PAGE for n in range(8)} <= _pages(touched_pages.touched(os.getpid())[0])
    platform.close()
    channel.close()


def test_a_spare_stops_touching_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, address = _private_file(tmp_path)
    del memory
    platform, runtime = socket.socketpair()
    channel = Channel(runtime.detach())
    channel.wait_by_poll()
    platform.sendall(frames.encode(frames.GO_ON, {}))
    advised: list[int] = []
    monkeypatch.setattr(spare, "_advise", lambda start, count, advice: advised.append(start))
    ranges = struct.pack("<2Q", address, address + PAGE)
    spare.touch(frames.Frame(frames.TOUCH, {"written": 0}, ranges), channel)
    assert advised == []
    frame = channel.receive()
    assert frame is not None and frame.kind == frames.GO_ON
    spare.touch(frames.Frame(frames.TOUCH, {"written": 0}, ranges), channel)
    assert advised == [address]
    platform.close()
    channel.close()
