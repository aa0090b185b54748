"""`thawd.sources.buckets.watcher`: whatever happens to a file, there is exactly one event for every complete object.

Every test ends with a restart over the same catalog, which must find nothing left to do. So no event comes twice,
either.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.integration.watched import CREATED, REMOVED, Watched, kernel_watches, watch, write_block, writer
from thawd.resources import Notification


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
        # The writer pauses for longer than the first polls; meanwhile other files come and go
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
            # Sets mtime, after closing the copy, to that of a source file written a moment ago
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
        # Other content of the same size with the old times: only ctime shows the change
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
        # A file that is deleted before the watcher saw it never was an object
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
        # A symbolic link in its place leads out of the bucket, so the object is no longer available
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/below").write_bytes(b"secret")
        shutil.rmtree(path)
        path.symlink_to(tmp_path / "outside")
        await watched.expect(removed=("x/below",))

    watch(tmp_path, scenario)


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
