"""A session with the cluster's PostgreSQL database: a connection that is opened again after it broke.

`Session.run` and `Session.transact` repeat what failed for a reason that passes: a broken connection, a server that
restarts, a conflict with another transaction. Both stop at the caller's deadline. If a connection breaks while the
server commits, a transaction may have happened or not. `Session.run` is for work that has the same effect when it runs
twice, so it simply repeats the work. `Session.transact` finds out: each of its transactions stores a random number, and
afterwards the session tries to store that number again. If the number is there, the transaction happened. If not, the
session has now taken the number, so that the transaction can no longer happen.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from thawd.errors import StoreError, StoreFullError, UnknownOutcomeError
from thawd.resources import StoreUrl
from thawd.stores.tables.postgresql import split_url
from thawd.system.retry import Backoff

if TYPE_CHECKING:
    import psycopg

    from thawd.stores.tables.postgresql_connection import PatientConnection

T = TypeVar("T")

SCHEMA = "thawd"
"""Name of the PostgreSQL schema with thawd's tables, unless the URL has a parameter ``schema``."""
ANSWER_S = 10.0
"""How long an operation may take by default, with all its repetitions, seconds."""

# Source: PostgreSQL documentation, "Database Connection Control Functions", parameter key words.
_DEFAULTS = {
    "connect_timeout": "2",  # the shortest that libpq allows
    "tcp_user_timeout": "3000",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "application_name": "thawd",
    "target_session_attrs": "read-write",  # of several servers, the one that is not a standby
}
# The server ends the transaction of a machine that is paused or cut off in the middle, because the rows that it locked
# would keep others from taking over. It also notices soon that a machine has gone without a word: by default that takes
# two hours, and a network that fails often would use up all connections. `synchronous_commit` may be stronger than
# "on", but not weaker.
_SETTINGS = """
SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10s', false),
    set_config('idle_in_transaction_session_timeout', '1s', false), set_config('lock_timeout', '2s', false),
    set_config('statement_timeout', '30s', false),
    CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
        THEN set_config('synchronous_commit', 'on', false) END,
    current_setting('server_encoding')
"""
# Source: PostgreSQL documentation, appendix "PostgreSQL Error Codes": connection exceptions, transaction rollback,
# operator intervention, and single codes: idle_in_transaction_session_timeout, lock_not_available,
# too_many_connections, read_only_sql_transaction (the server has become a standby).
_PASSING_CLASSES = ("08", "40", "57")
_PASSING = ("25P03", "55P03", "53300", "25006")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5


class Session:
    """A connection to the cluster's database, for one thread at a time.

    Args:
        url: the database; the parameter ``schema`` of the URL names the schema.
        check: examines a new connection before it is used, for example the version of the schema.

    Attributes:
        opened: how many connections it has opened.
    """

    def __init__(self, url: StoreUrl, *, check: Callable[[PatientConnection], None] | None = None) -> None:
        self._url = url
        self._conninfo, own = split_url(url.text)
        self._check = check
        self._connection: PatientConnection | None = None
        self._ending = threading.Event()
        self.opened = 0
        self.schema = own.get("schema", SCHEMA)

    def run(self, work: Callable[[PatientConnection], T], *, until: float) -> T:
        """Run `work`, whose statements are transactions of their own. It is repeated when it fails, so it must be
        harmless to run it several times.

        Args:
            work: runs statements.
            until: when to give up, ``time.monotonic()`` seconds.

        Raises:
            UnknownOutcomeError: the deadline passed, and the last attempt may have had an effect.
            StoreError: the database refused, or could not be reached.
        """
        import psycopg

        backoff = Backoff(first_s=_FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        began = False
        while True:
            try:
                connection = self._connected(until)
                began = True
                return work(connection)
            except psycopg.Error as error:
                self._require_repetition(error, backoff, until, unknown=began)

    def transact(self, work: Callable[[PatientConnection], T], *, until: float) -> T:
        """Run `work` in one serializable transaction, which happens once or not at all.

        `work` is repeated after a conflict, so it must have no effect except on the connection.

        Args:
            work: runs statements; it must not begin or end transactions.
            until: when to give up, ``time.monotonic()`` seconds.

        Raises:
            UnknownOutcomeError: the connection broke during the commit, and the deadline passed before the database
                could say whether the transaction had happened.
            StoreError: nothing was changed: the database refused, or could not be reached.
        """
        import psycopg

        backoff = Backoff(first_s=_FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        while True:
            operation, commits = uuid.uuid4(), False
            try:
                connection = self._connected(until)
                connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
                result = work(connection)
                connection.execute("INSERT INTO operations (id) VALUES (%s)", (operation,))
                commits = True
                connection.execute("COMMIT")
            except psycopg.Error as error:
                if commits and _lost(error):
                    self._drop()
                    if self._has_happened(operation, until):
                        return result
                self._require_repetition(error, backoff, until)
            except BaseException:
                self._undo()
                raise
            else:
                return result

    def _has_happened(self, operation: uuid.UUID, until: float) -> bool:
        """Whether a transaction whose commit was not answered has happened. If it has not, it never will.

        If the server still works on the transaction, the statement waits until that has ended.

        Raises:
            UnknownOutcomeError: the database has not said; or the answer to an earlier question was lost, too, so that
                the number may be that of the question.
        """
        import psycopg

        lost_answers = 0

        def store(connection: PatientConnection) -> int:
            nonlocal lost_answers
            try:
                return connection.execute(
                    "INSERT INTO operations (id) VALUES (%s) ON CONFLICT DO NOTHING", (operation,)
                ).rowcount
            except psycopg.Error as error:
                lost_answers += _lost(error)
                raise

        try:
            stored = self.run(store, until=until)
        except StoreError as error:
            raise self._unknown(error.message) from None
        if not stored and lost_answers:
            raise self._unknown("the answer to that question was lost")
        return not stored

    def _unknown(self, why: str) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"{self._url}: the connection broke while a change was committed, and the database has not said since "
            f"then whether the change was made ({why}); look at what you changed before you repeat it"
        )

    def break_off(self) -> None:
        """Make running and later operations fail soon. May be called from another thread."""
        self._ending.set()

    def close(self) -> None:
        """Close the connection. The session can be used again, unless `break_off` was called."""
        self._drop()

    def _connected(self, until: float) -> PatientConnection:
        """The connection with the deadline `until`, opened if there is none.

        Raises:
            psycopg.Error: there is no connection.
            StoreError: the database cannot be used.
        """
        import psycopg

        if self._ending.is_set():
            raise StoreError(f"{self._url} is closed, because thawd is shutting down")
        if self._connection is not None and not self._connection.closed:
            self._connection.until = until
            return self._connection
        from thawd.stores.tables.postgresql_connection import PatientConnection

        try:
            given = psycopg.conninfo.conninfo_to_dict(self._conninfo)
        except psycopg.ProgrammingError as error:
            raise StoreError(
                f"PostgreSQL's client does not accept the URL {self._url} ({self._said(error)}); correct it in "
                "thawd.toml"
            ) from None
        parameters: dict[str, Any] = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        self._connection = connection = PatientConnection.connect(**parameters, autocommit=True)
        connection.given_up = self._ending.is_set
        connection.until = until
        try:
            self._prepare(connection)
        except BaseException:
            self._drop()
            raise
        self.opened += 1
        return connection

    def _prepare(self, connection: PatientConnection) -> None:
        from psycopg import sql

        row = connection.execute(_SETTINGS).fetchone()
        if row is not None and row[-1] != "UTF8":
            raise StoreError(
                f"the database of {self._url} has the encoding {row[-1]}, which cannot store every name; use a "
                "database with the encoding UTF8"
            )
        connection.execute(sql.SQL("SET search_path TO {}, pg_catalog").format(sql.Identifier(self.schema)))
        if self._check is not None:
            self._check(connection)

    def _require_repetition(
        self, error: psycopg.Error, backoff: Backoff, until: float, *, unknown: bool = False
    ) -> None:
        """Return after a wait if the operation is to be repeated; else raise the error for the caller."""
        now = time.monotonic()
        if _lost(error):
            self._drop()
        else:
            self._undo()
        wait_s = backoff.failed(now)
        if self._ending.is_set() or not _passes(error) or now + wait_s >= until:
            raise self._explained(error, unknown=unknown and _lost(error)) from None
        self._ending.wait(wait_s)

    def _undo(self) -> None:
        """End the open transaction; if that fails, close the connection, which ends it, too."""
        import psycopg

        connection = self._connection
        if connection is None or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            return
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _explained(self, error: psycopg.Error, *, unknown: bool) -> StoreError:
        said = self._said(error)
        if error.sqlstate == "53100":
            return StoreFullError(f"the disk of {self._url} is full ({said}), so nothing was stored; free some space")
        if unknown:
            return UnknownOutcomeError(
                f"{self._url} did not answer in time ({said}), so it is unknown whether the change was made"
            )
        return StoreError(f"{self._url} failed: {said}")

    def _said(self, error: psycopg.Error) -> str:
        return " ".join(self._url.conceal(str(error)).split())


def _lost(error: psycopg.Error) -> bool:
    """Whether the connection broke or the server ended it, so that it is unknown what the last statement did."""
    import psycopg

    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state[:2] in ("08", "57") or state == "25P03"


def _passes(error: psycopg.Error) -> bool:
    """Whether a repetition may succeed."""
    return _lost(error) or error.sqlstate in _PASSING or (error.sqlstate or "")[:2] in _PASSING_CLASSES
