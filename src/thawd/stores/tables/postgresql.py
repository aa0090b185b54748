"""A table in PostgreSQL. Its items are rows of a PostgreSQL table, which is created if it is missing.

The item is stored in a column of type ``json``, which keeps its text. ``jsonb`` would not: it sorts the keys, drops
repeated ones, writes numbers differently and refuses ``\\u0000``.

Doing an operation twice has the same effect as doing it once. So if a connection breaks, and it is not known whether
the operation was committed, the operation is repeated on a new connection. Each thread has its own connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from thawd.errors import InvalidParameterValueException, NothingStored, StoreError, StoreFullError
from thawd.resources import StoreUrl

if TYPE_CHECKING:
    import psycopg

    from thawd.stores.tables.postgresql_connection import PatientConnection

SCHEMA_VERSION = 1
_COMMENT = "table of thawd, schema "  # the comment with which thawd marks a table that it has created
_OWN_PARAMETERS = ("table", "schema")
# Time limits for a server that does not answer; by default, libpq would wait for ever.
# Source: PostgreSQL documentation, "Database Connection Control Functions", parameter key words.
_DEFAULTS = {
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "application_name": "thawd",
}
_ATTEMPTS = 2
# How long to wait for an answer, seconds; _COUNT_S is for `count`. A server that can be reached may still not answer,
# for example because the table is locked.
_ANSWER_S = 20.0
_COUNT_S = 600.0
# Reads the comment of a table, in the given schema or else on the search path. thawd marks its tables by this comment.
_FIND = """
SELECT coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
    (SELECT CASE WHEN %s::name IS NULL THEN current_schemas(false) ELSE ARRAY[%s::name] END) AS path (names)
WHERE c.relname = %s AND n.nspname = ANY (names) ORDER BY array_position(names, n.nspname) LIMIT 1
"""

# PostgreSQL's text cannot contain NUL, but keys can. So NUL and the escape character U+0001 are each written as two
# characters. Different keys remain different, and their order is kept.
_ESCAPE, _ESCAPED = "\x01", (("\x01", "\x01\x02"), ("\x00", "\x01\x01"))


class PostgresqlTable:
    """A `thawd.stores.tables.threads.BlockingTable` in PostgreSQL.

    Args:
        name: the table's name. It is also the name of the PostgreSQL table, unless the URL has a parameter ``table``.
        url: a URL for libpq, which may also have thawd's parameters ``table`` and ``schema``.
        create: whether to create the PostgreSQL table if it is missing.

    The first operation connects to the server. All methods raise `StoreError` when the server cannot be reached or
    fails; the next call tries again.
    """

    def __init__(self, name: str, url: StoreUrl, *, create: bool = True) -> None:
        from psycopg import sql

        self._name = name
        self._url = url
        self._create = create
        self._conninfo, own = split_url(url.text)
        parts = [own["schema"]] if "schema" in own else []
        self._path = (*parts, own.get("table", name))
        self._table = sql.Identifier(*self._path)
        self._local = threading.local()
        self._connections: set[PatientConnection] = set()
        self._lock = threading.Lock()  # protects `_connections`
        self._checking = threading.Lock()
        self._checked = False
        self._ending = False

    def put(self, key: str, text: str) -> None:
        """Store the item; durable on return."""
        self._execute(
            "INSERT INTO {table} (key, item) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET item = excluded.item",
            (_stored(key), text),
        )

    def get(self, key: str) -> bytes | None:
        """The item; None: there is none."""
        rows, _ = self._execute("SELECT item::text FROM {table} WHERE key = %s", (_stored(key),))
        return rows[0][0].encode() if rows else None

    def delete(self, key: str) -> bool:
        """Remove the item; returns whether there was one.

        The answer is wrong if the item was removed, but the connection broke, so that the operation was repeated.
        """
        return self._execute("DELETE FROM {table} WHERE key = %s", (_stored(key),))[1] > 0

    def scan(self, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Up to `limit` keys and items after the key `after`, in the order of the keys' UTF-8 bytes."""
        rows, _ = self._execute(
            "SELECT key, item::text FROM {table} WHERE key > %s ORDER BY key LIMIT %s", (_stored(after), limit)
        )
        return [(_read(key), item.encode()) for key, item in rows]

    def count(self) -> int:
        """How many items there are. PostgreSQL reads the whole index to count them."""
        rows, _ = self._execute("SELECT count(*) FROM {table}", (), limit_s=_COUNT_S)
        return int(rows[0][0])

    def break_off(self) -> None:
        """Make running and later operations fail soon. An attempt to connect is not interrupted."""
        self._ending = True

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            connection.close()

    def _execute(
        self, template: str, values: tuple[Any, ...], *, limit_s: float | None = None
    ) -> tuple[list[tuple[Any, ...]], int]:
        """Run a statement in its own transaction, for at most `limit_s` seconds (None: `_ANSWER_S`).

        Returns:
            The rows that the statement returned, and the number of rows that it affected.
        """
        import psycopg
        from psycopg import sql

        for attempt in range(1, _ATTEMPTS + 1):
            connection = None
            try:
                connection = self._connect()
                connection.until = time.monotonic() + (limit_s or _ANSWER_S)
                cursor = connection.execute(sql.SQL(template).format(table=self._table), values)
                return (cursor.fetchall() if cursor.description else []), cursor.rowcount
            except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
                # If the connection broke, or the error is perhaps temporary (`_may_pass`), try once more on a new one.
                broken = connection is not None and (connection.closed or _may_pass(error))
                if connection is not None:
                    self._drop(connection)
                if not broken or attempt == _ATTEMPTS or self._ending:
                    raise self._explained(error) from None
            except psycopg.Error as error:
                if error.sqlstate == "42P01" and connection is not None:
                    self._checked = False  # somebody dropped the table, so check again whether it exists
                    self._drop(connection)
                raise self._explained(error) from None
        raise AssertionError("unreachable")

    def _connect(self) -> PatientConnection:
        """This thread's connection. It is created at the first use, and again after it was closed."""
        from thawd.stores.tables.postgresql_connection import PatientConnection

        connection: PatientConnection | None = getattr(self._local, "connection", None)
        if connection is not None and not connection.closed:
            return connection
        connection = PatientConnection.connect(**self._parameters(), autocommit=True, prepare_threshold=None)
        connection.given_up = lambda: self._ending
        connection.until = time.monotonic() + _ANSWER_S
        with self._lock:
            self._connections.add(connection)
        try:
            self._require_open()
            self._prepare(connection)
        except BaseException:
            self._drop(connection)
            raise
        self._local.connection = connection
        return connection

    def _require_open(self) -> None:
        if self._ending:
            raise StoreError(f"table {self._name} is closed, because thawd is shutting down")

    def _parameters(self) -> dict[str, Any]:
        import psycopg

        try:
            given = psycopg.conninfo.conninfo_to_dict(self._conninfo)
        except psycopg.ProgrammingError as error:
            raise StoreError(
                f"table {self._name}: PostgreSQL's client does not accept the URL {self._url} "
                f"({self._url.conceal(str(error)).strip()}); correct it in thawd.toml"
            ) from None
        return {**_DEFAULTS, **given, "client_encoding": "UTF8"}

    def _prepare(self, connection: PatientConnection) -> None:
        """Make commits wait for the disk. Check, once, that the PostgreSQL table exists and was made by thawd."""
        # With synchronous_commit = off, the server answers before the data is on the disk. `put` guarantees durability,
        # so switch the setting on.
        row = connection.execute(
            "SELECT current_setting('server_encoding'), CASE current_setting('synchronous_commit') WHEN 'off' "
            "THEN set_config('synchronous_commit', 'on', false) END"
        ).fetchone()
        if row is not None and row[0] != "UTF8":
            raise StoreError(
                f"table {self._name}: the database of {self._url} has the encoding {row[0]}, which cannot store every "
                "key; use a database with the encoding UTF8"
            )
        with self._checking:
            if not self._checked:
                self._check_table(connection)
                self._checked = True

    def _check_table(self, connection: PatientConnection) -> None:
        found = self._comment(connection)
        if found is None and self._create:
            self._make(connection)
            found = self._comment(connection)
        if found is None:
            raise NothingStored(
                f"table {self._name}: {self._url} has no table {'.'.join(self._path)} yet; it is created when the "
                "first item is put"
            )
        if not found.startswith(_COMMENT):
            raise StoreError(
                f"table {self._name}: {'.'.join(self._path)} in {self._url} was not made by thawd and was not changed; "
                "name another table with ?table=NAME in the URL"
            )
        if int(found.removeprefix(_COMMENT)) > SCHEMA_VERSION:
            raise StoreError(
                f"table {self._name}: {'.'.join(self._path)} in {self._url} was made by a newer thawd ({found}); use "
                "the newer thawd, or name another table with ?table=NAME in the URL"
            )

    def _comment(self, connection: PatientConnection) -> str | None:
        """The comment of the PostgreSQL table, empty if it has none; None: there is no such table."""
        schema = self._path[0] if len(self._path) > 1 else None
        # This queries PostgreSQL's system catalog, because to_regclass may not see a table that was just committed.
        row = connection.execute(_FIND, (schema, schema, self._path[-1])).fetchone()
        return None if row is None else str(row[0])

    def _make(self, connection: PatientConnection) -> None:
        from psycopg import sql

        with connection.transaction():
            # Two thawd servers may create the table at the same time, so this takes a lock. With CREATE ... IF NOT
            # EXISTS alone, the statement of the second server could fail.
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"thawd {self._path}",))
            if self._comment(connection) is not None:
                return
            connection.execute(
                sql.SQL('CREATE TABLE {table} (key text COLLATE "C" PRIMARY KEY, item json NOT NULL)').format(
                    table=self._table
                )
            )
            connection.execute(
                sql.SQL("COMMENT ON TABLE {table} IS {comment}").format(
                    table=self._table, comment=sql.Literal(f"{_COMMENT}{SCHEMA_VERSION}")
                )
            )

    def _drop(self, connection: PatientConnection) -> None:
        self._local.connection = None
        with self._lock:
            self._connections.discard(connection)
        with contextlib.suppress(Exception):
            connection.close()

    def _explained(self, error: psycopg.Error) -> Exception:
        said = " ".join(self._url.conceal(str(error)).split())
        kind = _class_of(error)
        if error.sqlstate == "53100":
            return StoreFullError(
                f"table {self._name}: the disk of {self._url} is full ({said}), so nothing was stored; free some space"
            )
        if kind in ("22", "23", "54"):  # data exception, integrity violation, program limit exceeded
            return InvalidParameterValueException(f"table {self._name}: PostgreSQL does not accept the item ({said})")
        return StoreError(f"table {self._name}: {self._url} failed: {said}")


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """The URL for libpq, and thawd's own parameters, which libpq would not accept."""
    base, mark, query = url.partition("?")
    theirs, own = [], {}
    for pair in query.split("&") if mark else []:
        name, _, value = pair.partition("=")
        if name in _OWN_PARAMETERS:
            own[name] = unquote_plus(value)
        else:
            theirs.append(pair)
    return base + ("?" + "&".join(theirs) if theirs else ""), own


def _stored(key: str) -> str:
    for character, written in _ESCAPED:
        key = key.replace(character, written)
    return key


def _read(key: str) -> str:
    if _ESCAPE not in key:
        return key
    for character, written in reversed(_ESCAPED):
        key = key.replace(written, character)
    return key


def _class_of(error: psycopg.Error) -> str:
    return (error.sqlstate or "")[:2]


def _may_pass(error: psycopg.Error) -> bool:
    """Whether a second attempt may succeed.

    It may after a broken connection (no SQLSTATE, or class 08), when the server was shut down (57P), and after a
    conflict with another transaction (40).
    """
    return error.sqlstate is None or _class_of(error) in ("08", "40") or error.sqlstate.startswith("57P")
