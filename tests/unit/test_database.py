"""`thawd.stores.database`: durable when required, one transaction per group, clear messages about unusable files."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from thawd.errors import StoreError, StoreFullError
from thawd.stores.database import Database

pytestmark = pytest.mark.in_memory

SCHEMA = ("CREATE TABLE t (x); CREATE TABLE u (y);",)
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "data" / "thawd.db", migrations=SCHEMA)
    yield database
    database.close()


def insert(value: object):  # type: ignore[no-untyped-def]
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (?)", (value,))

    return work


def values(connection: sqlite3.Connection) -> list[object]:
    return [row[0] for row in connection.execute("SELECT x FROM t ORDER BY rowid")]


def test_what_was_written_is_read_back_by_both_kinds_of_callers(db: Database) -> None:
    async def both() -> list[object]:
        await db.write(insert(1))
        return await db.read(values)

    assert asyncio.run(both()) == [1]
    db.write_now(insert(2))
    assert db.read_now(values) == [1, 2]


def test_works_that_wait_together_are_one_transaction_and_one_wake_up(db: Database) -> None:
    async def many() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        wake_ups = 0
        original = loop.call_soon_threadsafe

        def counting(*arguments, **options):  # type: ignore[no-untyped-def]
            nonlocal wake_ups
            wake_ups += 1
            return original(*arguments, **options)

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
        held, go = threading.Event(), threading.Event()

        def hold(_connection: sqlite3.Connection) -> None:
            held.set()
            go.wait(120)

        first = asyncio.ensure_future(db.write(hold))
        await asyncio.to_thread(held.wait, 120)
        wake_ups = 0
        before = commits()
        rest = [asyncio.ensure_future(db.write(insert(i))) for i in range(1000)]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *rest)
        return commits() - before, wake_ups

    def commits() -> int:
        # Frames of the write-ahead log with a commit mark. Source: sqlite.org/fileformat.html, "WAL Frame Header".
        log = Path(f"{db.path}-wal").read_bytes()
        page = int.from_bytes(log[8:12], "big")
        frames = range(32, len(log), 24 + page)
        return sum(log[at + 4 : at + 8] != b"\0\0\0\0" for at in frames)

    made, woken = asyncio.run(many())
    assert made == 1
    assert woken <= 3
    assert len(db.read_now(values)) == 1000


def test_a_work_that_raises_is_undone_alone_and_raises_in_its_caller(db: Database) -> None:
    def bad(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES ('bad')")
        raise KeyError("mine")

    async def mixed() -> list[object]:
        return await asyncio.gather(db.write(insert(1)), db.write(bad), db.write(insert(2)), return_exceptions=True)

    first, second, third = asyncio.run(mixed())
    assert (first, third) == (None, None)
    assert isinstance(second, KeyError)
    assert db.read_now(values) == [1, 2]


@pytest.mark.parametrize(("raises", "most"), [(False, 1), (True, 2)])
def test_the_works_of_a_group_run_once_unless_one_of_them_raises(db: Database, raises: bool, most: int) -> None:
    runs: Counter[int] = Counter()
    held, go = threading.Event(), threading.Event()

    def hold(_connection: sqlite3.Connection) -> None:
        held.set()
        go.wait(120)

    def counted(number: int) -> Callable[[sqlite3.Connection], None]:
        def work(connection: sqlite3.Connection) -> None:
            runs[number] += 1
            insert(number)(connection)
            if raises and number == 5:
                raise KeyError(number)

        return work

    async def group() -> list[object]:
        first = asyncio.ensure_future(db.write(hold))
        await asyncio.to_thread(held.wait, 120)
        rest = [asyncio.ensure_future(db.write(counted(number))) for number in range(10)]
        await asyncio.sleep(0)
        go.set()
        await first
        return await asyncio.gather(*rest, return_exceptions=True)

    results = asyncio.run(group())
    assert max(runs.values()) == most
    failed = {number for number, result in enumerate(results) if isinstance(result, KeyError)}
    assert failed == ({5} if raises else set())
    assert db.read_now(values) == [number for number in range(10) if number not in failed]


@pytest.mark.parametrize("raised", [StopIteration(), SystemExit(3), ValueError("x")])
def test_whatever_a_work_raises_the_database_lives_on(db: Database, raised: BaseException) -> None:
    def bad(_connection: sqlite3.Connection) -> None:
        raise raised

    async def work() -> None:
        with pytest.raises((RuntimeError, ValueError)):
            await asyncio.wait_for(db.write(bad), 120)
        with pytest.raises((RuntimeError, ValueError)):
            await asyncio.wait_for(db.read(bad), 120)

    asyncio.run(work())
    db.write_now(insert(1))
    assert db.read_now(values) == [1]


def test_a_work_that_ends_the_transaction_itself_harms_no_neighbour(db: Database) -> None:
    async def mixed() -> list[object]:
        return await asyncio.gather(
            db.write(insert(1)),
            db.write(lambda connection: connection.execute("ROLLBACK") and None),
            db.write(insert(2)),
            return_exceptions=True,
        )

    first, second, third = asyncio.run(mixed())
    assert (first, third) == (None, None)
    assert isinstance(second, StoreError)
    assert db.read_now(values) == [1, 2]


def test_an_error_of_sqlite_in_a_work_is_a_store_error_that_names_the_file(db: Database) -> None:
    with pytest.raises(StoreError, match=r"thawd\.db: no such table: nowhere"):
        db.write_now(lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"))


def test_reads_do_not_wait_for_a_writer_and_see_a_snapshot(db: Database) -> None:
    db.write_now(insert(1))
    writing, go = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (2)")
        writing.set()
        go.wait(120)

    thread = threading.Thread(target=lambda: db.write_now(slow))
    thread.start()
    assert writing.wait(120)
    assert db.read_now(values) == [1]
    go.set()
    thread.join()
    assert db.read_now(values) == [1, 2]


def test_a_read_cannot_write(db: Database) -> None:
    with pytest.raises(StoreError):
        db.read_now(insert(1))
    assert db.read_now(values) == []


def test_closing_finishes_what_is_queued_and_refuses_what_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database = Database(path, migrations=SCHEMA)

    async def fill() -> None:
        tasks = [asyncio.ensure_future(database.write(insert(i))) for i in range(2500)]
        await asyncio.sleep(0)
        await asyncio.to_thread(database.close)
        await asyncio.gather(*tasks)
        with pytest.raises(StoreError, match="closed"):
            await database.write(insert(1))

    asyncio.run(fill())
    database.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2500,)
    connection.close()
    assert not Path(f"{path}-wal").exists()


def test_callers_that_went_away_do_not_disturb(db: Database) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(db.write(insert("late")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    db.write_now(insert("next"))
    assert "next" in db.read_now(values)


def test_accepted_is_durable_when_the_process_is_killed(tmp_path: Path) -> None:
    # Given a process that prints every number once it has been stored
    script = (
        "import asyncio, sys; from pathlib import Path; from thawd.stores.database import Database\n"
        f"db = Database(Path({str(tmp_path / 'k.db')!r}), migrations={SCHEMA!r})\n"
        "async def one(i):\n"
        "    await db.write(lambda c: c.execute('INSERT INTO t VALUES (?)', (i,)) and None)\n"
        "    print(i, flush=True)\n"
        "async def main():\n"
        "    n = 0\n"
        "    while True:\n"
        "        await asyncio.gather(*(one(n + k) for k in range(20))); n += 20\n"
        "asyncio.run(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={"PYTHONPATH": str(SRC)}, text=True
    )
    assert process.stdout is not None
    accepted = {int(process.stdout.readline()) for _ in range(500)}
    # When it is killed while it stores numbers
    process.send_signal(signal.SIGKILL)
    accepted |= {int(line) for line in process.stdout if line.endswith("\n")}
    process.stdout.close()
    process.wait()
    # Then every number it printed is there
    database = Database(tmp_path / "k.db", migrations=SCHEMA)
    assert accepted <= set(database.read_now(values))
    database.close()


def test_a_full_disk_is_told_to_the_caller_and_leaves_the_database_usable(db: Database) -> None:
    pages = db.write_now(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    db.write_now(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages + 4}") and None)

    async def flood() -> list[object]:
        return await asyncio.gather(
            db.write(insert("small")),
            db.write(insert(b"x" * 200_000)),
            db.write(insert("other")),
            return_exceptions=True,
        )

    small, large, other = asyncio.run(flood())
    assert isinstance(large, StoreFullError)
    assert large.status == 503
    assert "disk is full" in str(large)
    assert (small, other) == (None, None)
    assert db.read_now(values) == ["small", "other"]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="thawd-disk-"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip("mounting a small disk takes root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return ballast


def test_a_disk_that_is_really_full_fails_and_recovers(small_disk: Path) -> None:
    # Given a database with rows and a log in use, on a disk that is then filled
    database = Database(small_disk / "thawd.db", migrations=SCHEMA)
    for i in range(10):
        database.write_now(insert(f"{i}" * 3000))
    database.close()
    database = Database(small_disk / "thawd.db", migrations=SCHEMA)
    database.write_now(
        lambda connection: connection.execute("UPDATE t SET x = replace(x, substr(x, 1, 1), 'z')") and None
    )
    ballast = fill(small_disk)
    # When more is written than there is room for
    with pytest.raises(StoreFullError, match="disk is full"):
        database.write_now(insert(os.urandom(100_000)))
    # Then none of it is stored, rows can be read and removed, and when there is room again everything works
    assert len(database.read_now(values)) == 10
    for _ in range(9):
        database.write_now(
            lambda connection: connection.execute("DELETE FROM t WHERE rowid = (SELECT min(rowid) FROM t)") and None
        )
    with pytest.raises(StoreFullError):
        database.write_now(insert(os.urandom(100_000)))
    ballast.unlink()
    database.write_now(insert(b"x" * 100_000))
    assert len(database.read_now(values)) == 2
    database.close()


def test_a_disk_that_is_full_at_start_is_told_so(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(StoreFullError, match="free some space"):
        Database(small_disk / "data" / "thawd.db", migrations=SCHEMA)


def test_a_lock_of_another_process_is_waited_for_and_then_told(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"
    database = Database(path, migrations=SCHEMA, busy_timeout_s=0.3)
    script = (
        f"import sqlite3, sys; c = sqlite3.connect({str(path)!r}, isolation_level=None); c.execute('BEGIN IMMEDIATE')\n"
        "print('locked', flush=True); sys.stdin.readline()"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdout.readline()
    begun = time.monotonic()
    with pytest.raises(StoreError, match="another process holds it locked"):
        database.write_now(insert(1))
    assert time.monotonic() - begun >= 0.3
    assert database.read_now(values) == []
    other.communicate(b"\n")
    database.write_now(insert(1))
    database.close()


def test_the_gauge_is_read_only_while_its_number_may_be_of_interest(tmp_path: Path) -> None:
    readings: list[int] = []

    def rows(connection: sqlite3.Connection) -> int:
        (count,) = connection.execute("SELECT count(*) FROM t").fetchone()
        readings.append(count)
        return int(count)

    db = Database(tmp_path / "thawd.db", migrations=SCHEMA, gauge=rows)
    db.gauge_from = 3
    gauged: list[int] = []
    for value in range(5):
        db.write_now(insert(value))
        gauged.append(db.gauged)
    db.write_now(lambda connection: connection.execute("DELETE FROM t WHERE x > 1").rowcount)
    left = db.gauged
    at_most = db.write_now(db.gauge_at_most)
    db.close()
    assert gauged[2:] == [3, 4, 5]  # exact from 3 on
    assert readings == [1, 3, 4, 5, 2]  # after the first row, there could be two; this is below 3
    assert left == at_most == 2


def test_the_gauge_stays_an_upper_bound_when_sqlite_has_counted_as_many_changes_as_it_can(tmp_path: Path) -> None:
    def rows(connection: sqlite3.Connection) -> int:
        (count,) = connection.execute("SELECT count(*) FROM t").fetchone()
        return int(count)

    db = Database(tmp_path / "thawd.db", migrations=SCHEMA, gauge=rows)
    db.gauge_from = 3
    db.write_now(insert(0))

    def count_on_from_the_smallest_number(connection: sqlite3.Connection) -> None:
        # The same difference as after 2^31 - 1 changes, whose number is followed by -2^31.
        db._gauged_after = connection.total_changes + (1 << 32)

    db.write_now(count_on_from_the_smallest_number)
    for value in range(1, 4):
        db.write_now(insert(value))
    gauged = db.gauged
    db.close()
    assert gauged == 4
