"""Claims about `thawd.events.buckets`: whatever happens to a file, exactly one event for every object that is complete.

Every test ends with a restart over the same catalog, which must find nothing left to do; so "one" means not two either.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mmap
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
import uvloop

from thawd.events import buckets, object_file
from thawd.events.buckets import BucketWatcher, WatchSettings
from thawd.resources import Bucket, Notification
from thawd.state.database import Database
from thawd.state.objects import ObjectCatalog
from thawd.state.queue import EventQueue
from thawd.state.schema import open_state

SRC = Path(__file__).parents[2] / "src"
DEADLINE_S = 30.0
CREATED, REMOVED = "ObjectCreated:Put", "ObjectRemoved:Delete"
ALL = (Notification(function="f", events=("s3:ObjectCreated:*", "s3:ObjectRemoved:*")),)

object_file.install_lease_signal_handler()


class Watched:
    """A bucket, its watcher, and the events that came of it so far."""

    def __init__(self, folder: Path, db: Database, notify: tuple[Notification, ...], settings: WatchSettings) -> None:
        self.folder = folder
        self.db = db
        self.bucket = Bucket(name="uploads", path=folder, notify=notify)
        self.settings = settings
        self.queue = EventQueue(db)
        self.catalog = ObjectCatalog(db)
        self.log: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.row_keys: list[str | None] = []
        self._news = asyncio.Event()
        self._logged = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sentinels = 0
        self.watcher = self._new_watcher()

    def _new_watcher(self) -> BucketWatcher:
        return BucketWatcher(
            self.bucket, objects=self.catalog, log=self._take_line, on_events=self._wake, settings=self.settings
        )

    def _take_line(self, line: str) -> None:
        self.log.append(line)
        self._loop.call_soon_threadsafe(self._logged.set)

    def _wake(self, _functions: set[str]) -> None:
        self._news.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Watched]:
        self.watcher = self._new_watcher()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.watcher.run())
            async with asyncio.timeout(DEADLINE_S):
                await self.watcher.initial_scan_done.wait()
            yield self
            task.cancel()
        await self.collect()

    async def collect(self) -> None:
        for function in {notification.function for notification in self.bucket.notify}:
            while events := await self.queue.lease(function, limit=500):
                await self.queue.done([event.id for event in events])
                self.row_keys += [event.row_key for event in events]
                for event in events:
                    (record,) = json.loads(event.payload)["Records"]
                    assert event.source == "bucket:uploads"
                    self.records.append(record)

    def seen(self) -> Counter[tuple[str, bytes]]:
        """How many events of which name each key had; sentinels left out."""
        return Counter(
            (record["eventName"], key)
            for record in self.records
            if not (key := unquote_to_bytes(record["s3"]["object"]["key"].replace("+", " "))).startswith(b"sentinel-")
        )

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`, which is asked anew whenever there are events."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                self._news.clear()
                await self.collect()
                if done():
                    return
                await self._news.wait()

    async def expect(self, *created: str | bytes, removed: tuple[str | bytes, ...] = ()) -> None:
        """Wait for exactly these events since the last call."""
        wanted = Counter([(CREATED, os.fsencode(key)) for key in created])
        wanted.update([(REMOVED, os.fsencode(key)) for key in removed])
        await self.until(lambda: self.seen() >= wanted)
        await self.barrier()
        assert self.seen() == wanted
        self.records.clear()

    async def barrier(self) -> None:
        """Return once everything that had been noticed before has been looked at once."""
        self._sentinels += 1
        name = f"sentinel-{self._sentinels}"
        (self.folder / name).write_bytes(b"")
        await self.until(lambda: any(record["s3"]["object"]["key"] == name for record in self.records))

    async def until_logged(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not any(text in line for line in self.log):
                self._logged.clear()
                await self._logged.wait()


Scenario = Callable[[Watched], Coroutine[Any, Any, None]]


def watch(
    tmp_path: Path,
    scenario: Scenario,
    *,
    notify: tuple[Notification, ...] = ALL,
    settings: WatchSettings | None = None,
    before: Callable[[Path], object] = lambda _folder: None,
    run: Callable[[Awaitable[None]], None] = asyncio.run,  # type: ignore[assignment]
) -> Watched:
    """Run `scenario` with a watched bucket, then once more without it: nothing may be left."""
    folder = tmp_path / "bucket"
    folder.mkdir(exist_ok=True)
    before(folder)
    db = open_state(tmp_path / "thawd.db")

    async def main() -> Watched:
        watched = Watched(folder, db, notify, settings or WatchSettings())
        async with watched.running():
            await scenario(watched)
        watched.records.clear()
        async with watched.running():
            pass
        assert watched.seen() == Counter()
        return watched

    try:
        return run(main())  # type: ignore[return-value, arg-type, func-returns-value]
    finally:
        db.close()


def writer(path: Path, *, mode: str = "wb") -> subprocess.Popen[bytes]:
    """A process that opens `path` and then writes a block for every line it is sent; ends at the end of its input."""
    script = (
        f"import sys\nwith open({os.fsencode(path)!r}, {mode!r}, buffering=0) as f:\n"
        "    print('open', flush=True)\n"
        "    for line in sys.stdin:\n"
        "        f.write(b'x' * 100_000); print('written', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    return process


def kernel_watches() -> int:
    """Folders this process watches, by what the kernel says: see proc(5), ``fdinfo``."""
    return sum(path.read_text().count("inotify wd:") for path in Path("/proc/self/fdinfo").iterdir() if path.exists())


def write_block(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"written\n"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_file_written_at_once_is_one_event_with_its_size_and_md5(tmp_path: Path, run: Any) -> None:
    async def scenario(watched: Watched) -> None:
        (watched.folder / "cat.png").write_bytes(b"meow")
        await watched.until(lambda: bool(watched.records))
        described = watched.records[0]["s3"]["object"]
        assert described["key"] == "cat.png"
        assert described["size"] == 4
        assert described["eTag"] == hashlib.md5(b"meow").hexdigest()
        assert watched.row_keys == ["cat.png"]
        record = await watched.watcher.lookup(b"cat.png")
        assert record is not None
        assert f"{record.sequencer:016X}" == described["sequencer"]
        await watched.expect("cat.png")

    watch(tmp_path, scenario, run=run)


def test_only_the_functions_that_want_an_event_get_it(tmp_path: Path) -> None:
    notify = (
        Notification(function="png", suffix=".png"),
        Notification(function="in", prefix="in/"),
        Notification(function="gone", events=("s3:ObjectRemoved:Delete",)),
    )

    async def scenario(watched: Watched) -> None:
        (watched.folder / "in").mkdir()
        (watched.folder / "in/a.png").write_bytes(b"1")
        (watched.folder / "b.png").write_bytes(b"2")
        (watched.folder / "c.txt").write_bytes(b"3")
        await watched.until(lambda: sum(watched.seen().values()) == 3)
        (watched.folder / "c.txt").unlink()
        await watched.until(lambda: sum(watched.seen().values()) == 4)
        wanted = [(r["eventName"], r["s3"]["configurationId"], r["s3"]["object"]["key"]) for r in watched.records]
        assert sorted(wanted) == [
            (CREATED, "in", "in/a.png"),
            (CREATED, "png", "b.png"),
            (CREATED, "png", "in/a.png"),
            (REMOVED, "gone", "c.txt"),
        ]

    watch(tmp_path, scenario, notify=notify)


ODD_NAMES = [
    b"a b.png",
    b"a+b%41&=?#.png",
    b"new\nline\r\t.png",
    "ü 猫 😀 e\u0301.png".encode(),
    b"\xff\xfe not utf-8 \x80",
    b"quote'\"\\`$(x).png",
    b"*?[a-z]",
    b"-rf",
    b"~",
    b"x" * 255,
    b" ",
    b"CON",
    b"trailing.",
    b"a.thawd-staging",
    b"dir with space/\xe9/f",
]


def test_odd_names_are_events_like_any_other(tmp_path: Path) -> None:
    def put_all(folder: Path, at: bytes) -> None:
        for name in ODD_NAMES:
            path = folder / os.fsdecode(at + name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name)

    async def scenario(watched: Watched) -> None:
        await watched.expect(*(b"before/" + name for name in ODD_NAMES))
        put_all(watched.folder, b"")
        await watched.expect(*ODD_NAMES)
        shutil.rmtree(watched.folder / "before")
        await watched.expect(removed=tuple(b"before/" + name for name in ODD_NAMES))

    watch(tmp_path, scenario, before=lambda folder: put_all(folder, b"before/"))


def test_a_file_written_slowly_is_one_event_when_its_writer_is_through(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        process = writer(watched.folder / "slow.bin")
        for _ in range(3):
            write_block(process)
            await watched.expect()
        # The writer pauses for longer than the first polls, and others come and go meanwhile
        (watched.folder / "quick").write_bytes(b"1")
        await watched.expect("quick")
        await asyncio.to_thread(process.communicate)
        await watched.until(lambda: bool(watched.seen()))
        assert watched.records[-1]["s3"]["object"]["size"] == 300_000
        await watched.expect("slow.bin")

    watch(tmp_path, scenario)


def test_a_file_still_being_written_at_start_is_one_event_when_its_writer_is_through(tmp_path: Path) -> None:
    processes = []

    async def scenario(watched: Watched) -> None:
        await watched.expect()
        for process in processes:
            write_block(process)
            await asyncio.to_thread(process.communicate)
        await watched.expect("a/b/early", "early")

    def before(folder: Path) -> None:
        (folder / "a/b").mkdir(parents=True)
        processes.append(writer(folder / "early"))
        processes.append(writer(folder / "a/b/early"))

    watch(tmp_path, scenario, before=before)


def test_a_mapping_counts_as_a_writer(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        with (watched.folder / "mapped").open("w+b") as file:
            file.truncate(4096)
            mapping = mmap.mmap(file.fileno(), 4096)
        await watched.expect()
        mapping[:5] = b"later"
        mapping.close()
        await watched.until(lambda: bool(watched.seen()))
        content = b"later" + bytes(4091)
        assert watched.records[-1]["s3"]["object"]["eTag"] == hashlib.md5(content).hexdigest()
        await watched.expect("mapped")

    watch(tmp_path, scenario)


def test_a_writer_that_dies_leaves_an_object_as_far_as_it_came(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        process = writer(watched.folder / "half")
        write_block(process)
        await watched.expect()
        process.kill()
        await asyncio.to_thread(process.communicate)
        await watched.expect("half")

    watch(tmp_path, scenario)


def test_a_thousand_files_at_once_are_a_thousand_events(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        script = (
            f"import os\nfor i in range(1000):\n    folder = {str(watched.folder)!r} + f'/{{i % 7}}/{{i % 3}}'\n"
            "    os.makedirs(folder, exist_ok=True)\n    open(folder + f'/{i}', 'wb').write(b'%d' % i)\n"
        )
        await asyncio.gather(
            asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=True),
            watched.expect(*(f"{i % 7}/{i % 3}/{i}" for i in range(1000))),
        )

    watch(tmp_path, scenario)


def test_files_moved_in_are_events_from_this_and_from_another_file_system(tmp_path: Path) -> None:
    (tmp_path / "outside/folder/deep").mkdir(parents=True)
    (tmp_path / "outside/folder/deep/x").write_bytes(b"x")
    (tmp_path / "outside/folder/y").write_bytes(b"y")
    (tmp_path / "outside/file").write_bytes(b"file")
    memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (memory / "m").write_bytes(b"m" * 3_000_000)
    (memory / "tree/below").mkdir(parents=True)
    for i in range(20):
        (memory / f"tree/below/{i}").write_bytes(b"%d" % i)

    async def scenario(watched: Watched) -> None:
        (tmp_path / "outside/file").rename(watched.folder / "file")
        (tmp_path / "outside/folder").rename(watched.folder / "folder")
        await watched.expect("file", "folder/deep/x", "folder/y")
        # shutil.move copies between file systems, and sets the times after closing
        await asyncio.to_thread(shutil.move, memory / "m", watched.folder / "m")
        await asyncio.to_thread(shutil.move, memory / "tree", watched.folder / "tree")
        await watched.expect("m", *(f"tree/below/{i}" for i in range(20)))

    try:
        watch(tmp_path, scenario)
    finally:
        shutil.rmtree(memory)


def test_folders_moved_within_and_out_of_the_bucket_take_their_objects_along(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.expect("a/b/x", "a/y")
        (watched.folder / "a").rename(watched.folder / "c")
        await watched.expect("c/b/x", "c/y", removed=("a/b/x", "a/y"))
        # The watch of a moved folder reports under its new name
        (watched.folder / "c/b/z").write_bytes(b"z")
        await watched.expect("c/b/z")
        (watched.folder / "c").rename(tmp_path / "outside")
        await watched.expect(removed=("c/b/x", "c/b/z", "c/y"))
        (tmp_path / "outside/b/late").write_bytes(b"1")
        await watched.expect()
        assert kernel_watches() == 1

    def before(folder: Path) -> None:
        (folder / "a/b").mkdir(parents=True)
        (folder / "a/b/x").write_bytes(b"x")
        (folder / "a/y").write_bytes(b"y")

    watch(tmp_path, scenario, before=before)


def test_copies_with_their_times_are_one_event_each_however_new_the_source(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        for i in range(200):
            source = tmp_path / "source"
            source.write_bytes(b"%d" % i)
            # Sets mtime, after closing the copy, to that of a source written a moment ago
            shutil.copy2(source, watched.folder / f"{i}")
        await watched.expect(*map(str, range(200)))

    watch(tmp_path, scenario)


def test_an_overwritten_object_is_an_event_again(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        path = watched.folder / "k"
        path.write_bytes(b"one")
        await watched.expect("k")
        path.write_bytes(b"two")
        await watched.expect("k")
        path.write_bytes(b"two")
        await watched.expect("k")
        with path.open("ab") as file:
            file.write(b"more")
        await watched.expect("k")
        (tmp_path / "new").write_bytes(b"twomore")
        (tmp_path / "new").rename(path)
        await watched.expect("k")
        path.touch()
        await watched.expect("k")
        # Other content of the same size with the old times: only ctime tells
        times = path.stat()
        with path.open("r+b") as file:
            file.write(b"TWO")
            file.flush()
            os.utime(file.fileno(), ns=(times.st_atime_ns, times.st_mtime_ns))
        await watched.expect("k")

    watch(tmp_path, scenario)


def test_a_change_of_times_or_rights_only_is_no_event(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        path = watched.folder / "k"
        path.write_bytes(b"one")
        await watched.expect("k")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        await watched.expect()
        path.chmod(0o600)
        os.link(path, tmp_path / "link")
        await watched.expect()

    watch(tmp_path, scenario)


def test_a_removed_object_is_an_event_and_forgotten(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        path = watched.folder / "d/k"
        path.parent.mkdir()
        path.write_bytes(b"one")
        await watched.expect("d/k")
        first = await watched.watcher.lookup(b"d/k")
        path.unlink()
        await watched.expect(removed=("d/k",))
        assert await watched.watcher.lookup(b"d/k") is None
        path.write_bytes(b"one")
        await watched.expect("d/k")
        again = await watched.watcher.lookup(b"d/k")
        assert first is not None
        assert again is not None
        assert again.sequencer > first.sequencer
        shutil.rmtree(path.parent)
        await watched.expect(removed=("d/k",))
        # A file that comes and goes before anybody looked never was an object
        for _ in range(20):
            path = watched.folder / "flash"
            path.write_bytes(b"1")
            path.unlink()
        await watched.barrier()
        assert watched.seen()[CREATED, b"flash"] == watched.seen()[REMOVED, b"flash"]

    watch(tmp_path, scenario)


def test_what_happened_while_thawd_was_down_is_found_at_start(tmp_path: Path) -> None:
    async def first(watched: Watched) -> None:
        await watched.expect("kept", "overwritten", "removed", "same/content")

    async def second(watched: Watched) -> None:
        await watched.collect()
        await watched.expect("new", "overwritten", "same/content", removed=("removed",))

    def fill(folder: Path) -> None:
        (folder / "same").mkdir()
        for name in ("kept", "overwritten", "removed", "same/content"):
            (folder / name).write_bytes(b"content")

    def change(folder: Path) -> None:
        (folder / "overwritten").write_bytes(b"CONTENT")
        (folder / "removed").unlink()
        (folder / "new").write_bytes(b"1")
        (folder / "same/content").write_bytes(b"content")

    watch(tmp_path, first, before=fill)
    watch(tmp_path, second, before=change)


def test_a_hard_kill_neither_loses_nor_repeats_an_event(tmp_path: Path) -> None:
    # Given a process that watches a bucket, killed again and again while files arrive
    folder = tmp_path / "bucket"
    folder.mkdir()
    script = (
        "import asyncio; from pathlib import Path; from thawd.events.buckets import BucketWatcher\n"
        "from thawd.resources import Bucket, Notification; from thawd.state.schema import open_state\n"
        "from thawd.state.objects import ObjectCatalog\n"
        f"db = open_state(Path({str(tmp_path / 'thawd.db')!r}))\n"
        f"bucket = Bucket(name='uploads', path=Path({str(folder)!r}), notify=(Notification(function='f'),))\n"
        "seen = lambda functions: print('events', flush=True)\n"
        "watcher = BucketWatcher(bucket, objects=ObjectCatalog(db), log=print, on_events=seen)\n"
        "asyncio.run(watcher.run())"
    )
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stop.is_set():
            (folder / f"{len(written)}").write_bytes(b"x")
            written.append(f"{len(written)}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(4):
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdout=subprocess.PIPE, env={"PYTHONPATH": str(SRC)}
            )
            assert process.stdout is not None
            for _ in range(5):
                assert process.stdout.readline() == b"events\n"
            process.send_signal(signal.SIGKILL)
            process.communicate()
    finally:
        stop.set()
        thread.join()

    # When it is started a last time
    async def scenario(watched: Watched) -> None:
        # Then there is one event for each file
        await watched.expect(*written)

    watch(tmp_path, scenario, notify=(Notification(function="f"),))


def test_what_is_no_object_is_passed_over(tmp_path: Path) -> None:
    def before(folder: Path) -> None:
        (folder / ".hidden").write_bytes(b"1")
        (folder / ".thawd-staging").mkdir()
        (folder / ".thawd-staging/x").write_bytes(b"1")
        (folder / "d/.git").mkdir(parents=True)
        (folder / "d/.git/config").write_bytes(b"1")
        os.mkfifo(folder / "fifo")
        (folder / "out").symlink_to("/etc/hostname")
        (folder / "up").symlink_to("../secret")
        (folder / "dangling").symlink_to("nowhere")
        (folder / "loop").symlink_to("loop")
        (folder / "hidden").symlink_to(".hidden")
        (folder / "etc").symlink_to("/etc")
        (folder / "real").mkdir()
        (folder / "real/file").write_bytes(b"1")
        (folder / "linked-folder").symlink_to("real")
        (folder / "link").symlink_to("real/file")
        with socket.socket(socket.AF_UNIX) as listening:
            here = Path.cwd()
            os.chdir(folder)
            listening.bind("socket")
            os.chdir(here)

    (tmp_path / "secret").write_bytes(b"1")

    async def scenario(watched: Watched) -> None:
        await watched.expect("real/file", "link")
        (watched.folder / ".later").write_bytes(b"1")
        (watched.folder / ".thawd-staging/y").write_bytes(b"1")
        (watched.folder / "out2").symlink_to("/etc/hostname")
        os.mkfifo(watched.folder / "fifo2")
        (watched.folder / ".later").rename(watched.folder / "visible")
        await watched.expect("visible")
        (watched.folder / "visible").rename(watched.folder / ".visible")
        await watched.expect(removed=("visible",))
        assert watched.log == []

    watch(tmp_path, scenario, before=before)


def test_a_folder_that_becomes_a_file_and_back_is_followed(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        path = watched.folder / "x"
        path.mkdir()
        (path / "below").write_bytes(b"1")
        await watched.expect("x/below")
        shutil.rmtree(path)
        path.write_bytes(b"file")
        await watched.expect("x", removed=("x/below",))
        path.unlink()
        path.mkdir()
        (path / "below").write_bytes(b"1")
        await watched.expect("x/below", removed=("x",))
        # A link in its place leads out of the bucket: its object is no longer to be had
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/below").write_bytes(b"secret")
        shutil.rmtree(path)
        path.symlink_to(tmp_path / "outside")
        await watched.expect(removed=("x/below",))

    watch(tmp_path, scenario)


def test_a_bucket_whose_folder_goes_away_loses_nothing_and_goes_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_RETURN_POLL_S", 0.02)

    async def scenario(watched: Watched) -> None:
        (watched.folder / "a").write_bytes(b"1")
        await watched.expect("a")
        watched.folder.rename(tmp_path / "away")
        await watched.until_logged("was moved or removed; put it back")
        (tmp_path / "away/b").write_bytes(b"2")
        (tmp_path / "away").rename(watched.folder)
        await watched.until_logged("is there again")
        await watched.expect("b")
        (watched.folder / "c").write_bytes(b"3")
        await watched.expect("c")
        # Removed and made anew: what was in it is gone now
        shutil.rmtree(watched.folder)
        await asyncio.to_thread(lambda: None)
        watched.folder.mkdir()
        (watched.folder / "d").write_bytes(b"4")
        await watched.until(lambda: (REMOVED, b"c") in watched.seen() and (CREATED, b"d") in watched.seen())
        assert set(watched.seen()) >= {(CREATED, b"d"), (REMOVED, b"a"), (REMOVED, b"b"), (REMOVED, b"c")}
        assert max(watched.seen().values()) == 1

    watch(tmp_path, scenario)


def test_a_bucket_whose_parent_goes_away_does_not_count_its_objects_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_RETURN_POLL_S", 0.02)
    parent = tmp_path / "parent"
    (parent / "bucket").mkdir(parents=True)

    async def scenario(watched: Watched) -> None:
        # No notice comes for this: the next scan finds it, or the next look
        (watched.folder / "a").write_bytes(b"1")
        await watched.expect("a")
        parent.rename(tmp_path / "away")
        (tmp_path / "away/bucket/a").unlink()
        await watched.until_logged("cannot be reached")
        (tmp_path / "away/bucket/a").write_bytes(b"1")
        (tmp_path / "away").rename(parent)
        await watched.until_logged("is there again")
        await watched.expect("a")

    db = open_state(tmp_path / "thawd.db")

    async def main() -> None:
        watched = Watched(parent / "bucket", db, ALL, WatchSettings())
        async with watched.running():
            await scenario(watched)

    asyncio.run(main())
    db.close()


def test_a_missing_folder_is_made_at_start(tmp_path: Path) -> None:
    db = open_state(tmp_path / "thawd.db")

    async def main() -> None:
        watched = Watched(tmp_path / "not/yet/there", db, ALL, WatchSettings())
        async with watched.running():
            (watched.folder / "a").write_bytes(b"1")
            await watched.expect("a")

    asyncio.run(main())
    db.close()


def test_more_files_than_are_held_in_memory_all_arrive(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        open_files = [(watched.folder / f"open{i}").open("wb") for i in range(60)]
        for i in range(500):
            (watched.folder / f"{i}").write_bytes(b"%d" % i)
        await watched.until(lambda: sum(watched.seen().values()) >= 500)
        for file in open_files:
            file.close()
        await watched.expect(*map(str, range(500)), *(f"open{i}" for i in range(60)))

    watch(tmp_path, scenario, settings=WatchSettings(held_keys=20))


def test_notices_the_kernel_had_to_drop_are_made_up_for(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 20_000:
        pytest.skip(f"the kernel queues {limit} notices")
    # Each file is made and closed: two notices. A folder made and removed again is two more.
    count = 2000
    noise = limit // 2 + 100

    async def scenario(watched: Watched) -> None:
        # While this blocks the event loop nobody reads the kernel's queue
        for _ in range(noise):
            (watched.folder / "noise").mkdir()
            (watched.folder / "noise").rmdir()
        for i in range(count):
            (watched.folder / f"{i}").write_bytes(b"%d" % i)
        await watched.expect(*map(str, range(count)))

    watch(tmp_path, scenario)


def test_without_notices_from_the_kernel_scans_find_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_root: bytes) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(buckets, "TreeWatch", refuse)

    async def scenario(watched: Watched) -> None:
        assert "the kernel gives no notices" in watched.log[0]
        (watched.folder / "d").mkdir()
        (watched.folder / "d/a").write_bytes(b"1")
        await watched.expect("d/a")
        (watched.folder / "d/a").unlink()
        await watched.expect(removed=("d/a",))

    watch(tmp_path, scenario, settings=WatchSettings(unwatched_interval_s=0.05, scan_share=0))


def test_lost_notices_are_made_up_for_by_the_next_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketWatcher, "_take_notices", lambda _self, _session, tree: tree.read() and None)

    async def scenario(watched: Watched) -> None:
        (watched.folder / "d").mkdir()
        (watched.folder / "d/a").write_bytes(b"1")
        await watched.expect("d/a")
        shutil.rmtree(watched.folder / "d")
        await watched.expect(removed=("d/a",))

    watch(tmp_path, scenario, settings=WatchSettings(scan_interval_s=0.05, scan_share=0))


def test_where_the_kernel_does_not_tell_writers_stillness_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "leases_work", lambda _folder: False)

    async def scenario(watched: Watched) -> None:
        assert "does not tell who is writing" in watched.log[0]
        process = writer(watched.folder / "slow")
        # It is never still for long, but for longer in all
        for _ in range(12):
            write_block(process)
            await asyncio.sleep(0.1)
        await watched.collect()
        assert watched.seen() == Counter()
        await asyncio.to_thread(process.communicate)
        (watched.folder / "quick").write_bytes(b"1")
        await watched.expect("slow", "quick")

    watch(tmp_path, scenario, settings=WatchSettings(settle_s=0.6))


def test_objects_wait_while_the_state_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thawd.events.recorder._STORE_RETRY_S", 0.05)

    def limit_pages(db: Database, spare: int) -> None:
        def work(connection: sqlite3.Connection) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + spare}")

        db.write_now(work)

    async def scenario(watched: Watched) -> None:
        await asyncio.to_thread(limit_pages, watched.db, 3)
        for i in range(300):
            (watched.folder / f"{i:0200}").write_bytes(b"%d" % i)
        await watched.until_logged("disk is full")
        await watched.watcher.ingest(b"%0200d" % 299)
        await asyncio.to_thread(limit_pages, watched.db, 100_000)
        await watched.expect(*(f"{i:0200}" for i in range(300)))
        await watched.until_logged("can be written again")
        assert len(watched.log) <= 4

    watch(tmp_path, scenario)


def test_an_object_overwritten_during_a_scan_is_seen_in_its_last_state(tmp_path: Path) -> None:
    stop = threading.Event()

    async def scenario(watched: Watched) -> None:
        final = {}

        def overwrite() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                for i in range(600):
                    final[f"{i}"] = b"%d" % (turn % 10)
                    (watched.folder / f"{i}").write_bytes(final[f"{i}"])

        thread = threading.Thread(target=overwrite)
        thread.start()
        try:
            await watched.until(lambda: len(watched.records) > 1000)
        finally:
            stop.set()
            thread.join()

        def all_final() -> bool:
            last = {r["s3"]["object"]["key"]: r["s3"]["object"]["eTag"] for r in watched.records}
            return last == {key: hashlib.md5(content).hexdigest() for key, content in final.items()}

        await watched.until(all_final)
        sequencers: dict[str, list[str]] = {}
        for record in watched.records:
            described = record["s3"]["object"]
            sequencers.setdefault(described["key"], []).append(described["sequencer"])
        assert all(each == sorted(set(each)) for each in sequencers.values())

    watch(tmp_path, scenario, settings=WatchSettings(scan_interval_s=0.01, scan_share=0))


def test_ingest_and_the_kernels_notice_of_the_same_object_are_one_event(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        for i in range(30):
            path = watched.folder / f"{i}"
            path.write_bytes(b"%d" % i)
            found = path.stat() if i % 2 else None
            etag = hashlib.md5(b"%d" % i).hexdigest() if i % 2 else None
            await asyncio.gather(
                *(watched.watcher.ingest(os.fsencode(path.name), stat=found, etag=etag) for _ in range(3))
            )
            if i % 2:
                record = await watched.watcher.lookup(os.fsencode(path.name))
                assert record is not None
                assert record.etag == etag
        await watched.expect(*map(str, range(30)))
        (watched.folder / "7").unlink()
        await watched.watcher.ingest(b"7")
        assert await watched.watcher.lookup(b"7") is None
        await watched.watcher.ingest(b"never there")
        await watched.watcher.ingest(b".hidden")
        await watched.expect(removed=("7",))

    watch(tmp_path, scenario)


def test_a_large_file_does_not_hold_up_small_ones(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        with (watched.folder / "large").open("wb") as file:
            file.truncate(2_000_000_000)
        for i in range(50):
            (watched.folder / f"{i}").write_bytes(b"1")
        await watched.until(lambda: len(watched.seen()) >= 50)
        assert (CREATED, b"large") not in watched.seen()
        (watched.folder / "large").unlink()
        await watched.barrier()

    watch(tmp_path, scenario)


def test_files_of_other_users_are_judged_by_stillness_and_unreadable_ones_reported(tmp_path: Path) -> None:
    # Given files of root's in a bucket, and a watcher that runs as nobody
    if os.getuid():
        pytest.skip("acting as another user takes root")
    folder = Path(tempfile.mkdtemp(prefix="thawd-others-"))
    script = (
        "import asyncio, json, os, sys; from pathlib import Path; from thawd.events.buckets import *\n"
        "from thawd.resources import Bucket, Notification; from thawd.state.schema import open_state\n"
        "from thawd.state.objects import ObjectCatalog; import thawd.events.s3_event, encodings.idna\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"db = open_state(Path({str(folder / 'data/thawd.db')!r}))\n"
        f"bucket = Bucket(name='b', path=Path({str(folder / 'bucket')!r}), notify=(Notification(function='f'),))\n"
        "async def main():\n"
        "    catalog = ObjectCatalog(db)\n"
        "    said = lambda line: print(line, flush=True)\n"
        "    watcher = BucketWatcher(bucket, objects=catalog, log=said, on_events=lambda f: None,\n"
        "                            settings=WatchSettings(settle_s=0.2, scan_interval_s=0.1, scan_share=0))\n"
        "    async with asyncio.timeout(20), asyncio.TaskGroup() as group:\n"
        "        task = group.create_task(watcher.run())\n"
        "        await watcher.initial_scan_done.wait()\n"
        "        while await catalog.count('b') < 1: await asyncio.sleep(0.01)\n"
        "        print([record.key for record in await watcher.listing()], flush=True)\n"
        "        task.cancel()\n"
        "asyncio.run(main())"
    )
    try:
        folder.chmod(0o755)
        (folder / "data").mkdir()
        os.chown(folder / "data", 65534, 65534)
        (folder / "bucket/shut").mkdir(parents=True)
        (folder / "bucket/shut").chmod(0o700)
        (folder / "bucket/public").write_bytes(b"1")
        (folder / "bucket/private").write_bytes(b"1")
        (folder / "bucket/private").chmod(0o600)
        done = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "[b'public']" in done.stdout
        assert done.stdout.count("'private' cannot be read (Permission denied); make it readable") == 1
        assert done.stdout.count("'shut' cannot be read (Permission denied)") == 1
    finally:
        shutil.rmtree(folder)
