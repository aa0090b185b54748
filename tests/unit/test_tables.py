"""Tables in SQLite files, and how tables are opened. test_table_stores checks what all stores guarantee."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from thawd.errors import NothingStored, ResourceNotFoundException, StoreError
from thawd.resources import Table
from thawd.stores.schema import open_state
from thawd.stores.tables.access import Tables
from thawd.stores.tables.sqlite import SqliteTable, read_file

pytestmark = pytest.mark.in_memory

SRC = Path(__file__).parents[2] / "src"


def open_table(path: Path) -> SqliteTable:
    return SqliteTable("labels", path)


def test_an_unknown_table_is_told_with_those_there_are(tmp_path: Path) -> None:
    tables = Tables({name: Table(name=name, path=tmp_path / name) for name in ("labels", "faces")})
    with pytest.raises(ResourceNotFoundException, match=r"'lables'.*: faces, labels\."):
        asyncio.run(tables.get("lables"))
    assert list(tmp_path.iterdir()) == []


def test_tables_are_opened_when_first_asked_for_and_once(tmp_path: Path) -> None:
    tables = Tables({name: Table(name=name, path=tmp_path / f"{name}.db") for name in ("a", "b")})

    async def scenario() -> None:
        stores = await asyncio.gather(*(tables.get("a") for _ in range(10)))
        assert len({id(store) for store in stores}) == 1
        assert not (tmp_path / "b.db").exists()

    asyncio.run(scenario())
    tables.close()
    tables.close()


def test_a_table_that_cannot_be_opened_can_be_once_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    path.write_text("this is no database, but a note")
    tables = Tables({"t": Table(name="t", path=path)})

    async def scenario() -> None:
        with pytest.raises(StoreError, match="is not a SQLite database"):
            await tables.get("t")
        assert path.read_text() == "this is no database, but a note"
        path.unlink()
        await (await tables.get("t")).put("k", b"{}")

    asyncio.run(scenario())
    tables.close()


def test_the_reader_works_while_the_table_is_open_and_after(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = open_table(path)

    async def fill() -> None:
        await asyncio.gather(*(store.put(f"{i:04d}", b'{"i":%d}' % i) for i in range(1200)))

    asyncio.run(fill())
    expected = [(f"{i:04d}", b'{"i":%d}' % i) for i in range(1200)]
    assert list(read_file(path)) == expected
    store.close()
    content = path.read_bytes()
    assert list(read_file(path)) == expected
    assert path.read_bytes() == content


def test_a_reader_that_stops_half_way_does_not_keep_the_table_from_being_written(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = open_table(path)
    asyncio.run(store.put("a", b"{}"))
    reader = read_file(path)
    assert next(reader) == ("a", b"{}")
    asyncio.run(store.put("b", b"{}"))
    # A checkpoint in this mode returns 1, for busy, while another connection reads
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    other.close()
    assert next(reader) == ("b", b"{}")
    store.close()


def test_what_a_killed_server_had_accepted_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    script = (
        "import asyncio, os; from pathlib import Path\n"
        "from thawd.stores.tables.sqlite import SqliteTable\n"
        f"store = SqliteTable('t', Path({str(path)!r}))\n"
        "asyncio.run(store.put('k', b'{}')); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)})
    assert done.returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 0
    assert list(read_file(path)) == [("k", b"{}")]


def test_the_reader_tells_at_once_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(NothingStored, match="does not exist yet"):
        read_file(tmp_path / "missing.db")
    with pytest.raises(StoreError, match="is not a file"):
        read_file(tmp_path)
    text = tmp_path / "note.txt"
    text.write_text("not a database, only a note")
    with pytest.raises(StoreError, match="is not a SQLite database"):
        read_file(text)
    theirs = tmp_path / "theirs.db"
    with sqlite3.connect(theirs) as connection:
        connection.execute("CREATE TABLE items (key, item)")
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        read_file(theirs)
    open_state(tmp_path / "thawd.db").close()
    with pytest.raises(StoreError, match="another kind of thawd file"):
        read_file(tmp_path / "thawd.db")
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    with pytest.raises(StoreError, match="damaged"):
        read_file(damaged)
    (tmp_path / "empty.db").touch()
    with pytest.raises(NothingStored, match="contains no table yet"):
        read_file(tmp_path / "empty.db")
    assert not (tmp_path / "missing.db").exists()
    assert (tmp_path / "empty.db").read_bytes() == b""
    assert text.read_text() == "not a database, only a note"


def test_a_table_in_a_folder_that_may_only_be_read_is_read() -> None:
    # Given a table that belongs to root, and a process of the user nobody
    if os.getuid():
        pytest.skip("acting as another user takes root")
    folder = Path(tempfile.mkdtemp(prefix="thawd-table-"))
    folder.chmod(0o755)
    try:
        store = open_table(folder / "t.db")
        asyncio.run(store.put("k", b"{}"))
        store.close()
        assert stat.S_IMODE((folder / "t.db").stat().st_mode) == 0o600, "until its owner lets others read it"
        (folder / "t.db").chmod(0o644)
        script = (
            "import os; from pathlib import Path; from thawd.stores.tables.sqlite import read_file\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"print(list(read_file(Path({str(folder / 't.db')!r}))))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True
        )
        assert done.stdout == "[('k', b'{}')]\n", done.stderr
    finally:
        shutil.rmtree(folder)
