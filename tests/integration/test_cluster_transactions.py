"""Transactions whose connection breaks at the worst moment: each happens once, and the caller learns what happened."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tests.integration.postgresql import DEFAULT_PORT, PASSWORD, Postgresql
from thawd.errors import StoreError, UnknownOutcomeError
from thawd.resources import StoreUrl
from thawd.server.assembly.registered import Registered
from thawd.stores.cluster import schema
from thawd.stores.cluster.access import ClusterDatabase
from thawd.stores.cluster.sessions import Session


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        schema.prepare(store_url(running.url()))
        with psycopg.connect(running.url(), autocommit=True) as sql:
            sql.execute("CREATE TABLE thawd.marks (mark integer)")
        yield running


def store_url(text: str) -> StoreUrl:
    return StoreUrl(text=text, shown="postgresql://thawd:***@there", secrets=(PASSWORD,))


class Proxy:
    """Passes bytes between clients and the server, and lets a test break a connection at a commit.

    Attributes:
        at_commit: gets the connections to client and server, and the client's message, and passes it on or not. None:
            commits are passed on like everything else.
        lost: the answer to the next statement with these bytes is lost, and the connection with it; None: to none.
        refuses: whether new connections are closed.
    """

    def __init__(self, server: Postgresql, folder: Path) -> None:
        self.folder = folder
        self.at_commit: Callable[[socket.socket, socket.socket, bytes], None] | None = None
        self.lost: bytes | None = None
        self.refuses = False
        self._opened: list[socket.socket] = []
        self._target = str(server.folder / f".s.PGSQL.{DEFAULT_PORT}")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / f".s.PGSQL.{DEFAULT_PORT}"))
        self._socket.listen()
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for each in (self._socket, *self._opened):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                if self.refuses:
                    near.close()
                    continue
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._opened += [near, far]
                threading.Thread(target=self._up, args=(near, far), daemon=True).start()
                threading.Thread(target=self._down, args=(near, far), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if b"COMMIT" in data and self.at_commit is not None:
                    action, self.at_commit = self.at_commit, None
                    action(near, far, data)
                    return
                if self.lost is not None and self.lost in data:
                    self.lost = None
                    lose_the_answer(near, far, data)
                    return
                far.sendall(data)
        for each in (near, far):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _down(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                near.sendall(data)


def lose_the_commit(near: socket.socket, far: socket.socket, message: bytes) -> None:
    """Break the connection before the server gets the commit."""
    far.shutdown(socket.SHUT_RDWR)
    near.shutdown(socket.SHUT_RDWR)


def lose_the_answer(near: socket.socket, far: socket.socket, message: bytes) -> None:
    """Break the client's connection first, then let the server commit."""
    near.shutdown(socket.SHUT_RDWR)
    far.sendall(message)


@pytest.fixture
def proxy(server: Postgresql, tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(server, tmp_path)
    yield proxy
    proxy.close()


@pytest.fixture
def session(server: Postgresql, proxy: Proxy) -> Iterator[Session]:
    session = Session(store_url(server.url(host=str(proxy.folder))))
    yield session
    session.close()


def insert(mark: int) -> Callable[[Any], str]:
    def work(connection: psycopg.Connection[Any]) -> str:
        connection.execute("INSERT INTO marks VALUES (%s)", (mark,))
        return "inserted"

    return work


def count(server: Postgresql, mark: int) -> int:
    with psycopg.connect(server.url(), autocommit=True) as sql:
        row = sql.execute("SELECT count(*) FROM thawd.marks WHERE mark = %s", (mark,)).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.parametrize(("mark", "loss"), [(1, lose_the_commit), (2, lose_the_answer)])
def test_a_transaction_whose_commit_is_not_answered_happens_once(
    server: Postgresql, proxy: Proxy, session: Session, mark: int, loss: Callable[..., None]
) -> None:
    proxy.at_commit = loss
    assert session.transact(insert(mark), until=time.monotonic() + 60) == "inserted"
    assert proxy.at_commit is None
    assert count(server, mark) == 1


def test_a_caller_is_told_that_it_is_unknown_whether_a_transaction_happened(proxy: Proxy, session: Session) -> None:
    def lose_everything(near: socket.socket, far: socket.socket, message: bytes) -> None:
        proxy.refuses = True
        lose_the_answer(near, far, message)

    proxy.at_commit = lose_everything
    with pytest.raises(UnknownOutcomeError) as told:
        session.transact(insert(3), until=time.monotonic() + 1)
    assert not told.value.retryable
    assert PASSWORD not in str(told.value)


def test_if_the_answer_to_the_question_is_lost_too_a_transaction_does_not_count_as_made(
    server: Postgresql, proxy: Proxy, session: Session
) -> None:
    proxy.at_commit, proxy.lost = lose_the_commit, b"ON CONFLICT DO NOTHING"

    with pytest.raises(UnknownOutcomeError, match="the answer to that question was lost"):
        session.transact(insert(7), until=time.monotonic() + 20)

    assert count(server, 7) == 0


def test_a_transaction_that_did_not_reach_its_commit_is_known_not_to_have_happened(
    server: Postgresql, proxy: Proxy, session: Session
) -> None:
    proxy.refuses = True
    with pytest.raises(StoreError) as told:
        session.transact(insert(4), until=time.monotonic() + 0.5)
    assert not isinstance(told.value, UnknownOutcomeError)
    assert count(server, 4) == 0


def test_transactions_that_disturb_each_other_are_repeated(server: Postgresql) -> None:
    def increment(connection: psycopg.Connection[Any]) -> None:
        row = connection.execute("SELECT count(*) FROM marks WHERE mark >= 100").fetchone()
        assert row is not None
        connection.execute("INSERT INTO marks VALUES (%s)", (100 + row[0],))

    def work() -> None:
        own = Session(store_url(server.url()))
        for _ in range(5):
            own.transact(increment, until=time.monotonic() + 60)
        own.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(server.url(), autocommit=True) as sql:
        marks = [row[0] for row in sql.execute("SELECT mark FROM thawd.marks WHERE mark >= 100 ORDER BY mark")]
    assert marks == list(range(100, 120))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("INSERT INTO newer.migrations VALUES (9999)", "newer thawd"),
        ("COMMENT ON SCHEMA newer IS 'of somebody else'", "did not make"),
    ],
)
def test_a_schema_of_a_newer_thawd_or_of_another_program_is_not_touched(
    server: Postgresql, statement: str, words: str
) -> None:
    url = store_url(server.url(schema="newer"))
    schema.prepare(url)
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute(statement)  # type: ignore[arg-type]
        with pytest.raises(StoreError, match=words):
            schema.prepare(url)
        sql.execute("DROP SCHEMA newer CASCADE")


def test_machines_that_prepare_the_database_at_the_same_time_all_succeed(server: Postgresql) -> None:
    url = store_url(server.url(schema="together"))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            schema.prepare(url)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


async def test_numbers_of_old_transactions_are_removed_while_machines_run(server: Postgresql) -> None:
    url = store_url(server.url())
    database = ClusterDatabase(url)
    with psycopg.connect(server.url(), autocommit=True) as sql:
        sql.execute("DELETE FROM thawd.operations")
        sql.execute("INSERT INTO thawd.operations VALUES (gen_random_uuid(), now() - interval '25 hours')")
        sql.execute("INSERT INTO thawd.operations VALUES (gen_random_uuid(), now() - interval '23 hours')")

        def count() -> Any:
            return sql.execute("SELECT count(*) FROM thawd.operations").fetchone()

        machine = cast(Registered, SimpleNamespace(_forget_s=0.0, _state=SimpleNamespace(database=database)))
        await Registered._forget_old(machine)
        assert count() == (1,)
        sql.execute("UPDATE thawd.operations SET at = now() - interval '25 hours'")
        await Registered._forget_old(machine)  # only once an hour
        assert count() == (1,)
    await asyncio.to_thread(database.close)
