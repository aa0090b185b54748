"""Claims about `thawd.state.tables`: items stay as they are, what is none is refused, the reader disturbs nobody."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, StoreError
from thawd.resources import Table
from thawd.state.schema import open_state
from thawd.state.tables import MAX_ITEM_BYTES, SqliteTable, Tables, TableStore, read_table

SRC = Path(__file__).parents[2] / "src"


def open_table(path: Path) -> SqliteTable:
    return SqliteTable(Table(name="labels", path=path))


def test_items_come_back_byte_for_byte_and_the_last_put_wins(tmp_path: Path) -> None:
    store: TableStore = open_table(tmp_path / "t.db")

    async def scenario() -> None:
        item = '{"label": "ü", "p": 0.50, "n":\n1e400, "n": 2}'.encode().replace(b"1e400", b"1e40")
        await store.put("k", b'{"label":"old"}')
        await store.put("k", item)
        await store.put("k", item)
        assert await store.get("k") == item
        assert await store.get("unknown") is None
        assert await store.count() == 1
        assert await store.delete("k") is True
        assert await store.delete("k") is False
        assert await store.get("k") is None

    asyncio.run(scenario())
    store.close()


def test_a_scan_gives_every_item_once_in_the_order_of_keys(tmp_path: Path) -> None:
    store = open_table(tmp_path / "t.db")

    async def scenario() -> None:
        keys = [f"k{i}" for i in range(25)] + ["ü", "😀", "a b", "z\0y"]
        await asyncio.gather(*(store.put(key, json.dumps({"k": key}).encode()) for key in keys))
        found: list[str] = []
        after = ""
        while page := await store.scan(after=after, limit=7):
            found += [key for key, _ in page]
            after = found[-1]
        assert found == sorted(keys, key=str.encode)

    asyncio.run(scenario())
    store.close()


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{}x", "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b'{"a":' + b"[" * 150_000 + b"]" * 150_000 + b"}", "not JSON"),
        (b"[1]", "is a JSON array"),
        (b'"x"', "is a JSON string"),
        (b"1", "is a JSON number"),
        (b"null", "is a JSON null"),
        (b"true", "is a JSON boolean"),
        (b'{"a":"' + b"x" * MAX_ITEM_BYTES + b'"}', "allowed are 409600"),
    ],
)
def test_what_is_no_item_is_refused_by_table_and_key(tmp_path: Path, item: bytes, said: str) -> None:
    store = open_table(tmp_path / "t.db")
    with pytest.raises(InvalidParameterValueException, match=said) as caught:
        asyncio.run(store.put("cat.png", item))
    assert "table labels, key 'cat.png'" in str(caught.value)
    assert asyncio.run(store.count()) == 0
    store.close()


def test_an_item_of_exactly_the_limit_is_taken(tmp_path: Path) -> None:
    store = open_table(tmp_path / "t.db")
    item = b'{"a":"' + b"x" * (MAX_ITEM_BYTES - 8) + b'"}'
    assert len(item) == MAX_ITEM_BYTES
    asyncio.run(store.put("k" * 2048, item))
    assert asyncio.run(store.get("k" * 2048)) == item
    store.close()


@pytest.mark.parametrize(
    ("key", "said"), [("", "has 0 bytes"), ("ü" * 1025, "has 2050 bytes"), ("\udcff.png", "not valid Unicode")]
)
def test_what_is_no_key_is_refused(tmp_path: Path, key: str, said: str) -> None:
    store = open_table(tmp_path / "t.db")
    for operation in (store.put(key, b"{}"), store.get(key), store.delete(key)):
        with pytest.raises(InvalidParameterValueException, match=said):
            asyncio.run(operation)
    store.close()


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
        with pytest.raises(StoreError, match="is no SQLite database"):
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
    assert list(read_table(path)) == expected
    store.close()
    content = path.read_bytes()
    assert list(read_table(path)) == expected
    assert path.read_bytes() == content


def test_a_reader_that_stops_half_way_does_not_keep_the_table_from_being_written(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = open_table(path)
    asyncio.run(store.put("a", b"{}"))
    reader = read_table(path)
    assert next(reader) == ("a", b"{}")
    asyncio.run(store.put("b", b"{}"))
    # A checkpoint of this mode says 1, for busy, when somebody is still reading
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    other.close()
    assert next(reader) == ("b", b"{}")
    store.close()


def test_what_a_killed_server_had_accepted_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    script = (
        "import asyncio, os; from pathlib import Path; from thawd.resources import Table\n"
        "from thawd.state.tables import SqliteTable\n"
        f"store = SqliteTable(Table(name='t', path=Path({str(path)!r})))\n"
        "asyncio.run(store.put('k', b'{}')); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)})
    assert done.returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 0
    assert list(read_table(path)) == [("k", b"{}")]


def test_the_reader_tells_at_once_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such file"):
        read_table(tmp_path / "missing.db")
    with pytest.raises(StoreError, match="is not a file"):
        read_table(tmp_path)
    text = tmp_path / "note.txt"
    text.write_text("not a database, only a note")
    with pytest.raises(StoreError, match="is no SQLite database"):
        read_table(text)
    theirs = tmp_path / "theirs.db"
    with sqlite3.connect(theirs) as connection:
        connection.execute("CREATE TABLE items (key, item)")
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        read_table(theirs)
    open_state(tmp_path / "thawd.db").close()
    with pytest.raises(StoreError, match="another kind of thawd file"):
        read_table(tmp_path / "thawd.db")
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    with pytest.raises(StoreError, match="damaged"):
        read_table(damaged)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="holds no table yet"):
        read_table(tmp_path / "empty.db")
    assert not (tmp_path / "missing.db").exists()
    assert (tmp_path / "empty.db").read_bytes() == b""
    assert text.read_text() == "not a database, only a note"


def test_a_table_in_a_folder_that_may_only_be_read_is_read() -> None:
    # Given a table of root's, and a process of nobody's
    if os.getuid():
        pytest.skip("acting as another user takes root")
    folder = Path(tempfile.mkdtemp(prefix="thawd-table-"))
    folder.chmod(0o755)
    try:
        store = open_table(folder / "t.db")
        asyncio.run(store.put("k", b"{}"))
        store.close()
        script = (
            "import os; from pathlib import Path; from thawd.state.tables import read_table\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"print(list(read_table(Path({str(folder / 't.db')!r}))))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True
        )
        assert done.stdout == "[('k', b'{}')]\n", done.stderr
    finally:
        shutil.rmtree(folder)
