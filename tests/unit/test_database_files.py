"""Files that `thawd.stores.database` opens: it reports a file that it cannot use, and leaves it unchanged."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from thawd.errors import StoreError
from thawd.stores import sqlite_file
from thawd.stores.database import Database

pytestmark = pytest.mark.in_memory

SCHEMA = ("CREATE TABLE t (x); CREATE TABLE u (y);",)
SRC = Path(__file__).parents[2] / "src"


def insert(value: object):  # type: ignore[no-untyped-def]
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (?)", (value,))

    return work


def values(connection: sqlite3.Connection) -> list[object]:
    return [row[0] for row in connection.execute("SELECT x FROM t ORDER BY rowid")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n\x1a\n not a database at all", "is not a SQLite database"),
        (b"SQLite format 3\x00" + b"\xff" * 4000, "damaged|not a database"),
    ],
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "thawd.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=said) as caught:
        Database(path, migrations=SCHEMA)
    assert str(path) in str(caught.value)
    assert "move it away" in str(caught.value)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["thawd.db"]


def test_a_damaged_page_is_told_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"
    database = Database(path, migrations=SCHEMA)
    for i in range(200):
        database.write_now(insert(f"{i}" * 500))
    database.close()
    content = bytearray(path.read_bytes())
    content[3 * 4096 : 6 * 4096] = os.urandom(3 * 4096)
    path.write_bytes(content)
    database = Database(path, migrations=SCHEMA)
    with pytest.raises(StoreError, match=r"damaged .* \.recover"):
        database.read_now(values)
    database.close()


def test_the_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Database(path, migrations=SCHEMA)
    assert path.read_bytes() == content


def test_a_file_of_a_newer_thawd_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"
    Database(path, migrations=(*SCHEMA, "CREATE TABLE newer (x);")).close()
    with pytest.raises(
        StoreError, match=r"newer thawd \(schema version 2; this is thawd .*, which knows versions up to 1\)"
    ):
        Database(path, migrations=SCHEMA)


def test_an_older_file_is_brought_up_to_date_with_its_content(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"
    old = Database(path, migrations=SCHEMA)
    old.write_now(insert(1))
    old.close()
    trigger = (
        "CREATE TRIGGER copy AFTER INSERT ON t BEGIN INSERT INTO u VALUES (NEW.x); DELETE FROM u WHERE y = 0; END;"
    )
    new = Database(path, migrations=(*SCHEMA, "ALTER TABLE t ADD COLUMN z; " + trigger))
    new.write_now(lambda connection: connection.execute("INSERT INTO t VALUES (2, 3)") and None)
    assert new.read_now(lambda connection: connection.execute("SELECT * FROM t").fetchall()) == [(1, None), (2, 3)]
    assert new.read_now(lambda connection: connection.execute("SELECT * FROM u").fetchall()) == [(2,)]
    new.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"
    Database(path, migrations=SCHEMA).close()
    with pytest.raises(StoreError, match="syntax error"):
        Database(path, migrations=(*SCHEMA, "CREATE TABLE v (x); CREATE NONSENSE;"))
    again = Database(path, migrations=SCHEMA)
    names = again.read_now(lambda connection: connection.execute("SELECT name FROM sqlite_schema").fetchall())
    assert names == [("t",), ("u",)]
    again.close()


def test_a_folder_or_file_that_cannot_be_written_is_told_with_the_way_out() -> None:
    # Given a folder and a database that belong to root, and a process of the user nobody
    if os.getuid():
        pytest.skip("acting as another user takes root")
    folder = Path(tempfile.mkdtemp(prefix="thawd-readonly-"))
    folder.chmod(0o755)
    try:
        Database(folder / "there.db", migrations=SCHEMA).close()
        (folder / "there.db").chmod(0o644)
        script = (
            "import os; from pathlib import Path\n"
            "from thawd.stores.database import Database; from thawd.errors import StoreError\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"for path in ({str(folder / 'there.db')!r}, {str(folder / 'new.db')!r}, {str(folder / 'a/new.db')!r}):\n"
            f"    try: Database(Path(path), migrations={SCHEMA!r}); print('opened')\n"
            "    except StoreError as error: print(error)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)}, stdout=subprocess.PIPE, text=True
        )
        told = done.stdout.splitlines()
        assert "there.db: cannot be opened for writing" in told[0]
        assert "new.db: cannot be opened for writing" in told[1]
        assert "give a path in a folder that this user may read and write" in told[2]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_nothing_is_stored_in_a_file_that_is_not_where_it_was_and_all_is_again_once_it_is(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / "there.db"
    database = Database(path, migrations=SCHEMA)
    try:
        database.write_now(lambda connection: connection.execute("INSERT INTO t VALUES (1)"))
        file, aside = Path(f"{path}{suffix}"), tmp_path / "aside"
        file.rename(aside)
        for _ in range(2):
            with pytest.raises(StoreError, match="was removed, moved or replaced"):
                database.write_now(lambda connection: connection.execute("INSERT INTO t VALUES (2)"))
        assert "was removed" in (database.misplaced() or "")
        assert database.is_elsewhere == (suffix == "")
        file.touch()
        with pytest.raises(StoreError, match="was removed, moved or replaced"):
            database.write_now(lambda connection: connection.execute("INSERT INTO t VALUES (3)"))
        aside.replace(file)
        database.write_now(lambda connection: connection.execute("INSERT INTO t VALUES (4)"))
        assert database.misplaced() is None
    finally:
        database.close()
    again = Database(path, migrations=SCHEMA)
    try:
        kept = again.read_now(lambda connection: [x for (x,) in connection.execute("SELECT x FROM t ORDER BY x")])
    finally:
        again.close()
    assert {1, 4} <= set(kept)
    assert 3 not in kept


def test_a_file_that_is_put_in_place_of_an_open_one_gets_nothing_of_its_log(tmp_path: Path) -> None:
    path, backup = tmp_path / "there.db", tmp_path / "backup.db"
    Database(path, migrations=SCHEMA).close()
    shutil.copy(path, backup)
    database = Database(path, migrations=SCHEMA)
    database.write_now(insert("after the backup"))
    backup.replace(path)
    assert database.is_elsewhere
    database.close()
    assert [file.name for file in tmp_path.iterdir()] == ["there.db"]
    again = Database(path, migrations=SCHEMA)
    try:
        assert again.read_now(values) == []
    finally:
        again.close()


def test_a_file_that_is_moved_takes_what_its_log_has_with_it(tmp_path: Path) -> None:
    path, moved = tmp_path / "there.db", tmp_path / "moved.db"
    database = Database(path, migrations=SCHEMA)
    database.write_now(insert("in the log"))
    path.rename(moved)
    database.close()
    assert [file.name for file in tmp_path.iterdir()] == ["moved.db"]
    again = Database(moved, migrations=SCHEMA)
    try:
        assert again.read_now(values) == ["in the log"]
    finally:
        again.close()


def test_a_log_that_cannot_be_folded_into_a_file_that_was_moved_is_kept_by_another_name(tmp_path: Path) -> None:
    path = tmp_path / "there.db"
    database = Database(path, migrations=SCHEMA, busy_timeout_s=0.01)
    reading = sqlite3.connect(path, isolation_level=None)
    reading.execute("BEGIN")
    reading.execute("SELECT * FROM t").fetchall()
    database.write_now(insert("in the log"))
    log = Path(f"{path}-wal").read_bytes()
    path.rename(tmp_path / "moved.db")
    database.close()
    (left,) = tmp_path.glob("there.db-wal*")
    assert left.name.startswith("there.db-wal.left-")
    assert left.read_bytes() == log
    reading.close()


MADE = "BEGIN; CREATE TABLE t (x); PRAGMA application_id = 7; PRAGMA user_version = 1; COMMIT"


class Interrupted(sqlite3.Connection):
    """A connection that lets another process create the file before its second statement."""

    asked = 0

    def execute(self, *arguments: object) -> sqlite3.Cursor:
        self.asked += 1
        if self.asked == 2:
            with contextlib.closing(sqlite3.connect(self.path)) as made:
                made.executescript(MADE)
        return super().execute(*arguments)  # type: ignore[arg-type]


def test_a_file_that_is_made_while_it_is_looked_at_is_not_taken_for_another_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.db"
    with contextlib.closing(sqlite3.connect(path)) as empty:
        empty.execute("VACUUM")

    def connect(_path: Path, *, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
        connection = sqlite3.connect(path, factory=Interrupted)
        connection.path = path
        return connection

    monkeypatch.setattr(sqlite_file, "_connect", connect)
    sqlite_file.open_foreign(path, application_id=7, newest_version=1, busy_timeout_s=1.0).close()
