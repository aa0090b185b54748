"""`thawd.sources.buckets.watcher` when things go wrong: there is still exactly one event for every complete object."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.watched import ALL, CREATED, REMOVED, SRC, Watched, watch, write_block, writer
from thawd.resources import Notification
from thawd.sources.buckets import watcher
from thawd.sources.buckets.watcher import BucketWatcher, WatchSettings
from thawd.stores.database import Database
from thawd.stores.schema import open_state


def test_a_hard_kill_neither_loses_nor_repeats_an_event(tmp_path: Path) -> None:
    # Given a process that watches a bucket and is killed repeatedly while files arrive
    folder = tmp_path / "bucket"
    folder.mkdir()
    script = (
        "import asyncio; from pathlib import Path; from thawd.sources.buckets.watcher import BucketWatcher\n"
        "from thawd.resources import Bucket, Notification; from thawd.stores.schema import open_state\n"
        "from thawd.stores.objects.catalog import ObjectCatalog\n"
        f"db = open_state(Path({str(tmp_path / 'thawd.db')!r}))\n"
        f"bucket = Bucket(name='uploads', path=Path({str(folder)!r}), notify=(Notification(function='f'),))\n"
        "seen = lambda functions: print('events', flush=True)\n"
        "watcher = BucketWatcher(bucket, objects=ObjectCatalog(db), log=print, on_events=seen)\n"
        "asyncio.run(watcher.run())"
    )
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stop.wait(0.001):  # a burst each time: as many as the disk takes would only be more of the same
            for _ in range(5):
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


def test_a_bucket_whose_folder_goes_away_loses_nothing_and_goes_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_RETURN_POLL_S", 0.02)

    async def scenario(watched: Watched) -> None:
        (watched.folder / "a").write_bytes(b"1")
        await watched.expect("a")
        watched.folder.rename(tmp_path / "away")
        await watched.until_logged("was moved or removed; put it back")
        (tmp_path / "away/b").write_bytes(b"2")
        (tmp_path / "away").rename(watched.folder)
        await watched.until_logged("is available again")
        await watched.expect("b")
        (watched.folder / "c").write_bytes(b"3")
        await watched.expect("c")
        # Removed and created again: the objects in it are gone now
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
    monkeypatch.setattr(watcher, "_RETURN_POLL_S", 0.02)
    parent = tmp_path / "parent"
    (parent / "bucket").mkdir(parents=True)

    async def scenario(watched: Watched) -> None:
        # This file causes no notification. The next scan or the next look finds it
        (watched.folder / "a").write_bytes(b"1")
        await watched.expect("a")
        parent.rename(tmp_path / "away")
        (tmp_path / "away/bucket/a").unlink()
        await watched.until_logged("cannot be accessed")
        (tmp_path / "away/bucket/a").write_bytes(b"1")
        (tmp_path / "away").rename(parent)
        await watched.until_logged("is available again")
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
    # Each file is created and closed, which is two notifications. A folder created and removed again is two more.
    count = 2000
    noise = limit // 2 + 100

    async def scenario(watched: Watched) -> None:
        # While this blocks the event loop, nothing reads the kernel's queue
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

    monkeypatch.setattr(watcher, "TreeWatch", refuse)

    async def scenario(watched: Watched) -> None:
        assert "inotify cannot be used" in watched.log[0]
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
    monkeypatch.setattr(watcher, "leases_work", lambda _folder: False)

    async def scenario(watched: Watched) -> None:
        assert "thawd cannot tell which files are being written" in watched.log[0]
        process = writer(watched.folder / "slow")
        # The file is never unchanged for long, but it is written for longer than the limit in total
        for _ in range(25):
            write_block(process)
            await asyncio.sleep(0.1)
        await watched.collect()
        assert watched.seen() == Counter()
        await asyncio.to_thread(process.communicate)
        (watched.folder / "quick").write_bytes(b"1")
        await watched.expect("slow", "quick")

    watch(tmp_path, scenario, settings=WatchSettings(settle_s=2.0))


def test_objects_wait_while_the_state_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thawd.sources.buckets.recorder._STORE_RETRY_S", 0.05)

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
        await watched.until_logged("objects can be recorded again")
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
    # Given files of root in a bucket, and a watcher that runs as the user nobody
    if os.getuid():
        pytest.skip("acting as another user takes root")
    folder = Path(tempfile.mkdtemp(prefix="thawd-others-"))
    script = (
        "import asyncio, json, os, sys; from pathlib import Path; from thawd.sources.buckets.watcher import *\n"
        "from thawd.resources import Bucket, Notification; from thawd.stores.schema import open_state\n"
        "from thawd.stores.objects.catalog import ObjectCatalog\n"
        "import thawd.sources.buckets.s3_event, encodings.idna\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"db = open_state(Path({str(folder / 'data/thawd.db')!r}))\n"
        f"bucket = Bucket(name='b', path=Path({str(folder / 'bucket')!r}), notify=(Notification(function='f'),))\n"
        "async def main():\n"
        "    catalog = ObjectCatalog(db)\n"
        "    said = lambda line: print(line, flush=True)\n"
        "    watcher = BucketWatcher(bucket, objects=catalog, log=said, on_events=lambda f: None,\n"
        "                            settings=WatchSettings(settle_s=0.2, scan_interval_s=0.1, scan_share=0))\n"
        "    async with asyncio.timeout(300), asyncio.TaskGroup() as group:\n"
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
