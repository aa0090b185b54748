"""The simulated disk of the other tests loses what was not synced, and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.durability.disk import MILLION, FaultyDisk

ROUNDS = 12
WRITER = """
    import os, sqlite3, sys
    folder, journal, synchronous = sys.argv[1:4]
    db = sqlite3.connect(folder + "/rows.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=" + journal)
    db.execute("PRAGMA synchronous=" + synchronous)
    db.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, text TEXT)")
    (number,) = db.execute("SELECT coalesce(max(id), 0) FROM rows").fetchone()
    while True:
        number += 1
        db.execute("INSERT INTO rows VALUES (?, ?)", (number, "x" * (number % 5000)))
        print(number, flush=True)
"""


def run(disk: FaultyDisk, code: str, *arguments: str, lines: int | None = None) -> list[str]:
    """Run Python code on the disk until it has printed `lines` lines, or to its end; then kill it."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, **disk.environ},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        printed = []
        for line in process.stdout:
            printed.append(line.rstrip("\n"))
            if len(printed) == lines:
                break
        process.kill()
        process.wait()
    return printed


def rows_after_power_cuts(folder: Path, journal: str, synchronous: str) -> tuple[int, int]:
    """Return how many rows were acknowledged and how many of them are found, for several power cuts of one database.

    Returns:
        The number of found rows is -1 if the database can no longer be read.
    """
    disk = FaultyDisk(folder / "disk", folder / "aside", seed=1)
    chance = random.Random(5)
    acknowledged = 0
    script = (
        "import sqlite3,sys; db = sqlite3.connect(sys.argv[1]); "
        "assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',); "
        "tables = db.execute('SELECT count(*) FROM sqlite_schema').fetchone()[0]; "
        "print(db.execute('SELECT count(*) FROM rows').fetchone()[0] if tables else 0)"
    )
    for _ in range(ROUNDS):
        printed = run(disk, WRITER, str(folder / "disk"), journal, synchronous, lines=chance.randint(5, 60))
        disk.cut(chance)
        acknowledged = max(acknowledged, int(printed[-1]) if printed else 0)
        read = subprocess.run(
            [sys.executable, "-c", script, folder / "disk" / "rows.db"], capture_output=True, text=True
        )
        there = int(read.stdout) if read.returncode == 0 else -1
        if there < acknowledged:
            return acknowledged, there
    return acknowledged, there


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_database_that_does_not_sync_loses_rows_and_one_that_does_loses_none(tmp_path: Path, journal: str) -> None:
    acknowledged, there = rows_after_power_cuts(tmp_path / "off", journal, "OFF")
    assert there < acknowledged
    acknowledged, there = rows_after_power_cuts(tmp_path / "full", journal, "EXTRA" if journal == "DELETE" else "FULL")
    assert there >= acknowledged >= ROUNDS


def test_a_log_that_is_synced_at_checkpoints_only_loses_rows_but_stays_whole(tmp_path: Path) -> None:
    acknowledged, there = rows_after_power_cuts(tmp_path, "WAL", "NORMAL")
    assert 0 <= there < acknowledged


@pytest.mark.parametrize(
    "steps", ["write", "write sync", "write rename", "write sync rename", "write sync rename folder"]
)
def test_a_file_is_sure_to_be_there_once_it_and_its_folder_are_synced(tmp_path: Path, steps: str) -> None:
    code = """
        import os, sys
        folder, steps = sys.argv[1], sys.argv[2].split()
        name = folder + "/staged" if "rename" in steps else folder + "/file"
        with open(name, "wb") as file:
            file.write(b"x" * 5000)
            file.flush()
            if "sync" in steps:
                os.fsync(file.fileno())
        if "rename" in steps:
            os.rename(name, folder + "/file")
        if "folder" in steps:
            os.fsync(os.open(folder, os.O_RDONLY))
    """
    found = set()
    for seed in range(30):
        root = tmp_path / str(seed)
        disk = FaultyDisk(root / "disk", root / "aside", seed=seed)
        run(disk, code, str(root / "disk"), steps)
        disk.cut(random.Random(seed))
        file = root / "disk" / "file"
        found.add("none" if not file.exists() else "whole" if file.read_bytes() == b"x" * 5000 else "torn")
    if "sync" in steps:
        assert found == ({"whole"} if "folder" in steps else {"whole", "none"})
    else:
        assert found >= {"none", "torn"}


def test_what_was_replaced_removed_or_cut_short_comes_back(tmp_path: Path) -> None:
    code = """
        import os, sys
        os.chdir(sys.argv[1])
        open("new", "w").write("new")
        os.replace("new", "replaced")
        os.unlink("removed")
        open("emptied", "w")
        os.ftruncate(os.open("shortened", os.O_RDWR), 10)
        os.mkdir("folder")
    """
    names = ("replaced", "removed", "emptied", "shortened")
    outcomes: dict[str, set[str]] = {name: set() for name in (*names, "folder")}
    for seed in range(40):
        root = tmp_path / str(seed)
        disk = FaultyDisk(root / "disk", root / "aside", seed=seed)
        for name in names:
            (root / "disk" / name).write_text("old" * 1000)
        run(disk, code, str(root / "disk"))
        disk.cut(random.Random(seed))
        for name, seen in outcomes.items():
            path = root / "disk" / name
            seen.add("folder" if path.is_dir() else path.read_text()[:20] if path.exists() else "gone")
    old = ("old" * 7)[:20]
    assert outcomes["replaced"] >= {old, "new"}
    assert outcomes["removed"] == {old, "gone"}
    assert outcomes["emptied"] == {old, ""}
    assert outcomes["shortened"] == {old, old[:10]}
    assert outcomes["folder"] == {"folder", "gone"}


def test_after_a_sync_that_failed_the_next_one_saves_only_what_was_written_again(tmp_path: Path) -> None:
    code = """
        import os, sys
        fd = os.open(sys.argv[1] + "/file", os.O_RDWR)
        os.pwrite(fd, b"n" * 4096, 0)
        os.pwrite(fd, b"n" * 4096, 4096)
        try:
            os.fsync(fd)
        except OSError as error:
            print(error.errno)
        os.pwrite(fd, b"n" * 4096, 4096)
        os.fsync(fd)
    """
    seen = set()
    for seed in range(20):
        root = tmp_path / str(seed)
        disk = FaultyDisk(root / "disk", root / "aside", seed=seed)
        (root / "disk" / "file").write_bytes(b"o" * 8192)
        disk.fail_sync = 1
        assert run(disk, code, str(root / "disk")) == ["5"]
        assert (disk.failed_syncs, disk.syncs) == (1, 1)
        disk.cut(random.Random(seed))
        content = (root / "disk" / "file").read_bytes()
        seen.add(content[:4096] == b"n" * 4096)
        assert content[4096:] == b"n" * 4096
    assert seen == {True, False}


def test_a_full_disk_takes_what_fits_and_drains(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "disk", tmp_path / "aside", seed=1)
    code = """
        import os, sys
        def tried(work):
            try:
                return work()
            except OSError as error:
                return os.strerror(error.errno)
        fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
        print(tried(lambda: os.write(fd, b"x" * 1000)), tried(lambda: os.write(fd, b"x" * 1000)))
        print(tried(lambda: os.pwrite(fd, b"y" * 600, 0)))
        print(tried(lambda: os.open(sys.argv[1] + "/other", os.O_CREAT | os.O_WRONLY)))
        os.ftruncate(fd, 100)
        print(os.statvfs(sys.argv[1]).f_bavail, tried(lambda: os.pwrite(fd, b"z" * 1000, 100)))
    """
    disk.free_bytes = 600
    full = "No space left on device"
    assert run(disk, code, str(tmp_path / "disk")) == [f"600 {full}", "600", full, "0 500"]
    assert disk.refused == 2


def test_writes_are_cut_short_and_the_clock_is_set(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "disk", tmp_path / "aside", seed=1)
    disk.short_writes = MILLION
    disk.clock_offset_ns = 3600 * 10**9
    code = """
        import os, sys, time
        print(os.write(os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT), b"x" * 1000), time.time())
    """
    (printed,) = run(disk, code, str(tmp_path / "disk"))
    written, clock = printed.split()
    assert 0 < int(written) < 1000
    assert float(clock) > (tmp_path / "disk" / "file").stat().st_mtime + 3000
