"""`thawd.transfer.fuse_files` and `arriving_snapshots`: other processes read files that are in no folder."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.chunk_stores import KEY, Machine, MemoryPlace, elsewhere
from tests.waiting import pause
from thawd.environments.starts.touched_pages import image_ranges
from thawd.errors import StoreError
from thawd.transfer import receiving, sending
from thawd.transfer.arriving_snapshots import ArrivingSnapshot
from thawd.transfer.chunk_downloads import ChunkSource, Patience
from thawd.transfer.fuse_files import DetachedFile, why_not_detached
from thawd.transfer.store_layout import chunk_key

pytestmark = pytest.mark.skipif(why_not_detached() is not None, reason=str(why_not_detached()))

CONTENT = os.urandom(300_000)
WAIT_S = 60.0


def read(fd: int) -> bytes:
    """Read the file in another process, as a copy does."""
    path = f"/proc/self/fd/{fd}"
    return subprocess.run(["cat", path], pass_fds=[fd], stdout=subprocess.PIPE, check=True).stdout


class GatedPlace(MemoryPlace):
    """Hands out the chunk `held` once the test allows it."""

    def begin(self) -> None:
        self.held = ""
        self.gate = threading.Event()
        self.is_dead = False

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        if key == self.held:
            self.gate.wait()
            if self.is_dead:
                raise StoreError("the store is dead")
        return super().get(key, limit_bytes=limit_bytes)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.install()
    return found


@pytest.fixture
def place() -> Iterator[GatedPlace]:
    found = GatedPlace()
    found.begin()
    yield found
    found.gate.set()


def arriving(machine: Machine, place: GatedPlace) -> tuple[Machine, ArrivingSnapshot]:
    """Send a snapshot, and begin to receive it on another machine; its last chunk does not arrive yet."""
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    record = receiving.find(place, KEY, "classify")
    sent = record.body.snapshots[-1]
    last = max(sent.extents, key=lambda one: one.length)
    place.held = chunk_key(record.chunks[last.chunk].id)
    wanted = receiving.Receiving(there.store, ChunkSource(place), record, None, Patience())
    return there, ArrivingSnapshot(wanted, KEY)


def test_a_file_that_is_in_no_folder_lives_as_long_as_its_users() -> None:
    ended = threading.Event()
    file = DetachedFile(size=len(CONTENT), read=lambda at, size: CONTENT[at : at + size], on_end=ended.set)
    assert read(file.fd) == CONTENT
    program = (
        "import sys\n"
        f"with open('/proc/self/fd/{file.fd}', 'rb') as file:\n"
        "    print('open', flush=True); sys.stdin.readline(); sys.stdout.buffer.write(file.read())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], pass_fds=[file.fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"open\n"
        file.close()
        assert not ended.is_set()
        assert user.communicate(b"\n")[0] == CONTENT
    assert ended.wait(WAIT_S)


def test_what_arrives_is_read_at_once_and_then_stored(machine: Machine, place: GatedPlace) -> None:
    there, snapshot = arriving(machine, place)
    fd = snapshot.image_fd
    assert there.store.snapshots() == []
    threading.Timer(0, place.gate.set).start()
    seen = read(fd)

    async def whole() -> Path:
        return (await snapshot.whole()).path

    stored = asyncio.run(whole())
    assert stored.read_bytes() == seen
    assert there.store.find("key") is not None
    draft = snapshot.snapshot.path.parent
    assert draft.exists()
    snapshot.release()
    begun_s = time.monotonic()
    while draft.exists():
        assert time.monotonic() < begun_s + WAIT_S
        pause(begun_s)
    assert stored.read_bytes() == seen


def test_the_owner_learns_that_contents_cannot_be_had_before_a_reader(machine: Machine, place: GatedPlace) -> None:
    there, snapshot = arriving(machine, place)
    fd = snapshot.image_fd
    with subprocess.Popen(["cat", f"/proc/self/fd/{fd}"], pass_fds=[fd], stdout=subprocess.DEVNULL) as reader:
        learnt: list[tuple[str, int | None]] = []
        assert snapshot.listen(lambda why: learnt.append((why, reader.poll()))) == ""
        place.is_dead = True
        place.gate.set()
        assert reader.wait(WAIT_S) != 0
    assert learnt[0] == ("the store is dead", None)
    assert snapshot.listen(lambda why: None) == "the store is dead"
    with pytest.raises(StoreError):
        asyncio.run(snapshot.whole())
    assert there.store.snapshots() == []
    snapshot.release()


def test_the_parts_of_a_file_that_a_process_has_touched_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(32 << 20))
    program = (
        "import mmap, sys\n"
        f"file = open({str(path)!r}, 'rb')\n"
        "one = mmap.mmap(file.fileno(), 28 << 20, flags=mmap.MAP_PRIVATE, prot=3, offset=4 << 20)\n"
        "one[5 << 20] = 1; one[21 << 20]\n"
        "print('ready', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            found = image_ranges(process.pid, path)
        except OSError as error:
            pytest.skip(f"this kernel does not list pages: {error}")
        process.communicate(b"\n")
    # The kernel maps up to two MiB of the page cache at once.
    for (begin, end), touched in zip(found, (9 << 20, 25 << 20), strict=True):
        assert begin <= touched < end <= begin + (2 << 20)
