"""Saves the tables of a cluster's database to files, and loads them into an empty database.

Guarantees:
- all tables are saved as they were at one moment (one snapshot), while machines go on;
- tables are loaded in one transaction: all, or none. It needs tables without rows, so nothing is overwritten or mixed;
- leases and shares are not saved, so they begin anew. Each machine that owned events is dead after a load, so that the
  machines that come take its events over. A machine with the same name simply comes back to them.

A file has the rows of a table in PostgreSQL's text format (the command COPY), which all its versions read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from thawd.errors import StoreError
from thawd.resources import StoreUrl
from thawd.stores.cluster import event_copies, machines, schema
from thawd.stores.cluster.cluster_settings import AUTHORITY
from thawd.stores.cluster.sessions import Session

if TYPE_CHECKING:
    from psycopg import sql

    from thawd.stores.cluster.machines import Machine
    from thawd.stores.tables.postgresql_connection import PatientConnection

T = TypeVar("T")

SAVED = ("event_copies", "event_moves", "schedules", "settings", "stream_positions")
"""Tables whose rows are saved."""
LEFT_OUT = ("concurrency", "leases", "machines", "migrations", "operations")
"""Tables that begin anew, or that a load makes itself."""

_BLOCK_BYTES = 1 << 20
# Nothing waits for a transaction that only reads. A machine that writes a backup may be slow.
_PATIENT = "SET idle_in_transaction_session_timeout = '10min'; SET statement_timeout = 0"
_COLUMNS = """
SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name"
# Copies whose owners have no row are taken over by nobody.
_MARK_DEAD = """
WITH owners AS (SELECT DISTINCT owner FROM event_copies), dead AS (
    INSERT INTO leases (name, holder, token, until) SELECT %s || owner, '', 1, clock_timestamp() FROM owners
    ON CONFLICT (name) DO NOTHING
)
INSERT INTO machines (name, token, address, summary) SELECT owner, 1, '', '' FROM owners ON CONFLICT (name) DO NOTHING
"""


class SavedTable(msgspec.Struct, frozen=True):
    """A table in a backup.

    Attributes:
        columns: names of its columns, in the order of the file.
        rows: number of its rows.
    """

    columns: list[str]
    rows: int


class Saved(msgspec.Struct, frozen=True):
    """Tables in a backup.

    Attributes:
        migrations: numbers of the scripts that had run (`thawd.stores.cluster.schema`).
        tables: the tables, by name.
    """

    migrations: list[int]
    tables: dict[str, SavedTable]


def file_of(folder: Path, table: str) -> Path:
    """The file of a table."""
    return folder / f"{table}.copy"


def known_machines(url: StoreUrl) -> tuple[list[Machine], list[str]]:
    """The machines of the cluster that are alive, and the names of those that were; both in order. Blocks.

    Raises:
        StoreError: the database cannot be used, or has no tables of thawd.
    """

    def work(connection: PatientConnection, session: Session) -> tuple[list[Machine], list[str]]:
        schema.require_tables(connection, session.schema, url)
        alive = machines.living(connection)
        names = {row[0] for row in connection.execute("SELECT name FROM machines")}
        return alive, sorted(names - {machine.name for machine in alive})

    return _with_session(url, work)


def save(url: StoreUrl, folder: Path, *, on_snapshot: Callable[[Callable[[Sequence[str]], set[str]]], None]) -> Saved:
    """Save the tables to files in `folder`. Blocks.

    Args:
        url: the database.
        folder: an existing folder; files of an earlier attempt are replaced.
        on_snapshot: called in the snapshot, with a function that returns those of some keys that have a copy in it. It
            may be called again, if the connection breaks.

    Raises:
        StoreError: the database cannot be used, or a file cannot be written.
    """

    def work(connection: PatientConnection, session: Session) -> Saved:
        connection.until = math.inf
        connection.execute(_PATIENT)
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            migrations = schema.require_tables(connection, session.schema, url)
            on_snapshot(lambda keys: event_copies.existing(connection, keys))
            tables = {name: _save(connection, session.schema, name, folder) for name in SAVED}
            return Saved(sorted(migrations), tables)

    return _with_session(url, work)


def load(url: StoreUrl, folder: Path, saved: Saved, *, with_authority: bool) -> None:
    """Load the tables in `folder` into a database without rows of thawd. Blocks.

    Args:
        url: the database.
        folder: folder of the files.
        saved: what `save` has returned.
        with_authority: whether the cluster keeps its authority; False: `thawd cluster up` makes another one.

    Raises:
        UnknownOutcomeError: it is unknown whether the tables were loaded. If they were, a second load is refused.
        StoreError: nothing was loaded: the database has rows already, or cannot be used, or a file is wrong.
    """

    session = Session(url)

    def work(connection: PatientConnection) -> None:
        connection.until = math.inf
        connection.execute(_PATIENT)
        schema.begin(connection, session.schema, url)
        _require_empty(connection, session.schema, url)
        schema.advance(connection, only=saved.migrations)
        connection.execute("DELETE FROM settings")  # what `advance` has noted
        for name, table in saved.tables.items():
            _load(connection, name, table, folder)
        if not with_authority:
            connection.execute("DELETE FROM settings WHERE name = %s", (AUTHORITY,))
        schema.advance(connection)
        connection.execute(_MARK_DEAD, (machines.lease_name(""),))

    try:
        session.transact(work, until=time.monotonic() + schema.PATIENCE_S)
    finally:
        session.close()


def _with_session(url: StoreUrl, work: Callable[[PatientConnection, Session], T]) -> T:
    session = Session(url)
    try:
        return session.run(lambda connection: work(connection, session), until=time.monotonic() + schema.PATIENCE_S)
    finally:
        session.close()


def _save(connection: PatientConnection, schema_name: str, table: str, folder: Path) -> SavedTable:
    columns = [row[0] for row in connection.execute(_COLUMNS, (schema_name, table))]
    path = file_of(folder, table)
    try:
        with path.open("wb") as file, connection.cursor() as cursor:
            path.chmod(0o600)
            with cursor.copy(_copy_statement(table, columns, "TO STDOUT")) as copy:
                for block in copy:
                    file.write(block)
            return SavedTable(columns, cursor.rowcount)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def _load(connection: PatientConnection, table: str, saved: SavedTable, folder: Path) -> None:
    path = file_of(folder, table)
    try:
        with path.open("rb") as file, connection.cursor() as cursor:
            with cursor.copy(_copy_statement(table, saved.columns, "FROM STDIN")) as copy:
                while block := file.read(_BLOCK_BYTES):
                    copy.write(block)
            found = cursor.rowcount
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    if found != saved.rows:
        raise StoreError(f"nothing was restored: {path} has {found:,} rows, and the backup {saved.rows:,}")


def _copy_statement(table: str, columns: Sequence[str], direction: str) -> sql.Composed:
    from psycopg import sql

    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("COPY {} ({}) " + direction).format(sql.Identifier(table), names)


def _require_empty(connection: PatientConnection, schema_name: str, url: StoreUrl) -> None:
    from psycopg import sql

    tables = {row[0] for row in connection.execute(_TABLES, (schema_name,))}
    for name in sorted(tables - {"migrations", "operations"}):
        found = connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(sql.Identifier(name))).fetchone()
        if found is not None:
            raise StoreError(
                f"nothing was restored: the tables of thawd in {url} have rows already (the first one with rows is "
                f"{name}), and a restore mixes and overwrites nothing. Name another schema with ?schema=NAME in the "
                "URL, or another database; or stop all machines and drop the schema, if its content is of no use"
            )
