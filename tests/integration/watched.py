"""A watched bucket and the resulting events, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from thawd.resources import Bucket, Notification
from thawd.sources.buckets import files
from thawd.sources.buckets.watcher import BucketWatcher, WatchSettings
from thawd.stores.database import Database
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.objects.catalog import ObjectCatalog
from thawd.stores.schema import open_state

SRC = Path(__file__).parents[2] / "src"
DEADLINE_S = 300.0
CREATED, REMOVED = "ObjectCreated:Put", "ObjectRemoved:Delete"
ALL = (Notification(function="f", events=("s3:ObjectCreated:*", "s3:ObjectRemoved:*")),)

files.install_lease_signal_handler()


class Watched:
    """A bucket, its watcher, and all its events so far."""

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
        """Return how many events of each name each key has had, without the sentinels."""
        return Counter(
            (record["eventName"], key)
            for record in self.records
            if not (key := unquote_to_bytes(record["s3"]["object"]["key"].replace("+", " "))).startswith(b"sentinel-")
        )

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()` is true. It is called again whenever there are events."""
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
        """Return once everything noticed before this call has been looked at once."""
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
    """Run `scenario` with a watched bucket, then run the watcher again: nothing may be left to do."""
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
    """Start a process that opens `path` and writes a block for each line it receives. It ends when its input ends."""
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
    """Return the number of folders that this process watches, from the kernel: see proc(5), ``fdinfo``."""
    return sum(path.read_text().count("inotify wd:") for path in Path("/proc/self/fdinfo").iterdir() if path.exists())


def write_block(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"written\n"
