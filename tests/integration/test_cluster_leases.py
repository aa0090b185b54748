"""Leases in PostgreSQL, with real processes that are killed, paused and cut off, and a server that restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from tests.integration.cables import Cable
from tests.integration.conftest import eventually
from tests.integration.postgresql import DEFAULT_PORT, PASSWORD, Postgresql
from thawd.errors import LeaseLostError, StoreError
from thawd.resources import StoreUrl
from thawd.stores.cluster import leases, machines, schema
from thawd.stores.cluster.leases import DURATION_S, Lease
from thawd.stores.cluster.sessions import Session
from thawd.stores.tables.postgresql_connection import PatientConnection

T = TypeVar("T")

TAKEOVER_S = 5.0
PROGRAM = Path(__file__).parent / "cluster_process.py"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        schema.prepare(store_url(running.url()))
        yield running


def store_url(text: str) -> StoreUrl:
    return StoreUrl(text=text, shown="postgresql://thawd:***@there", secrets=(PASSWORD,))


@pytest.fixture
def url(server: Postgresql, request: pytest.FixtureRequest) -> str:
    """Return the URL of a schema that only this test uses."""
    own = server.url(schema=request.node.name[:60])
    schema.prepare(store_url(own))
    return own


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    session = Session(store_url(url))
    yield session
    session.close()


@dataclass
class Member:
    """A process of `cluster_process`."""

    name: str
    process: subprocess.Popen[bytes]

    def wait_for(self, line: str) -> None:
        """Read the process's output up to a line that begins with `line`."""
        assert self.process.stdout is not None
        while True:
            read = self.process.stdout.readline().decode()
            assert read, f"{self.name} ended before it printed {line}"
            if read.startswith(line):
                return


@contextlib.contextmanager
def member(url: str, name: str, file: Path, *, wrong_s: float = 0.0) -> Iterator[Member]:
    process = subprocess.Popen(
        [sys.executable, PROGRAM, url, name, file, str(wrong_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        yield Member(name, process)
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def acts(file: Path) -> list[tuple[float, int, str]]:
    """Return what the processes did: when, with which token, and who."""
    return [
        (float(at), int(token), name) for at, token, name in (line.split() for line in file.read_text().splitlines())
    ]


def assert_one_leader_at_a_time(file: Path) -> None:
    """Check that nobody acted with a token after somebody had acted with a newer one."""
    tokens = [token for _, token, _ in acts(file)]
    assert tokens == sorted(tokens)
    assert all(len({name for _, token, name in acts(file) if token == one}) == 1 for one in set(tokens))


def gap_s(file: Path, before: str, after: str) -> float:
    """Return how long nobody led when `after` took over from `before` for the first time, seconds."""
    first = min(at for at, _, name in acts(file) if name == after)
    return first - max(at for at, _, name in acts(file) if name == before and at < first)


def test_a_leader_that_is_killed_is_replaced_within_five_seconds_although_clocks_differ(
    url: str, tmp_path: Path
) -> None:
    log = tmp_path / "acts"
    with member(url, "a", log, wrong_s=-60) as first:
        first.wait_for("gained")
        with member(url, "b", log, wrong_s=60) as second:
            second.wait_for("member")
            first.process.kill()
            second.wait_for("gained")
            eventually(lambda: any(name == "b" for _, _, name in acts(log)))
    assert gap_s(log, "a", "b") < TAKEOVER_S
    assert_one_leader_at_a_time(log)


def test_a_leader_that_was_paused_does_not_act_when_it_goes_on(url: str, tmp_path: Path) -> None:
    log = tmp_path / "acts"
    with member(url, "a", log) as first:
        first.wait_for("gained")
        with member(url, "b", log) as second:
            second.wait_for("member")
            first.process.send_signal(signal.SIGSTOP)
            second.wait_for("gained")
            eventually(lambda: any(name == "b" for _, _, name in acts(log)))
            first.process.send_signal(signal.SIGCONT)
            first.wait_for("lost")
            first.wait_for("member")  # the machine is back, as another incarnation, but does not lead
    assert gap_s(log, "a", "b") < TAKEOVER_S
    assert_one_leader_at_a_time(log)


def test_a_leader_that_is_cut_off_stops_before_another_begins(url: str, server: Postgresql, tmp_path: Path) -> None:
    log = tmp_path / "acts"
    cable = Cable(server.folder / f".s.PGSQL.{DEFAULT_PORT}")
    through_cable = server.url(host=str(cable.folder), schema=url.rsplit("=", 1)[1])
    with cable, member(through_cable, "a", log) as first:
        first.wait_for("gained")
        with member(url, "b", log) as second:
            second.wait_for("member")
            cable.cut()
            first.wait_for("lost")
            second.wait_for("gained")
            eventually(lambda: any(name == "b" for _, _, name in acts(log)))
            cable.mend()
            first.wait_for("member")
    assert gap_s(log, "a", "b") < TAKEOVER_S
    assert_one_leader_at_a_time(log)


def test_a_leader_that_ends_in_order_is_replaced_without_waiting_for_its_lease(url: str, tmp_path: Path) -> None:
    log = tmp_path / "acts"
    with member(url, "a", log) as first:
        first.wait_for("gained")
        with member(url, "b", log) as second:
            second.wait_for("member")
            assert first.process.stdin is not None
            first.process.stdin.close()
            second.wait_for("gained")
            eventually(lambda: any(name == "b" for _, _, name in acts(log)))
            assert first.process.wait() == 0
    assert gap_s(log, "a", "b") < DURATION_S
    assert_one_leader_at_a_time(log)


def test_a_database_that_restarts_leaves_one_leader(tmp_path: Path) -> None:
    log = tmp_path / "acts"
    with Postgresql() as own:
        url = own.url()
        schema.prepare(store_url(url))
        with member(url, "a", log) as first, member(url, "b", log) as second:
            first.wait_for("member")
            second.wait_for("member")
            eventually(lambda: log.exists() and log.read_text())
            for _ in range(3):
                own.restart()
                before = len(acts(log))
                eventually(lambda before=before: len(acts(log)) > before + 10)
    assert_one_leader_at_a_time(log)


def test_machines_see_each_other_until_one_dies(url: str, session: Session, tmp_path: Path) -> None:
    def living() -> dict[str, bytes]:
        return {one.name: one.summary for one in session.run(machines.living, until=time.monotonic() + 10)}

    with member(url, "a", tmp_path / "acts") as first, member(url, "b", tmp_path / "acts") as second:
        first.wait_for("member")
        second.wait_for("member")
        eventually(lambda: living() == {"a": b"summary of a", "b": b"summary of b"})
        second.process.kill()
        eventually(lambda: living() == {"a": b"summary of a"})


def test_a_change_that_comes_after_its_lease_has_gone_is_refused(session: Session) -> None:
    until = time.monotonic() + 30
    [old] = session.run(lambda c: leases.take(c, ["x"], holder="a", duration_s=30), until=until)
    session.transact(lambda c: leases.require(c, old), until=until)
    session.run(lambda c: leases.release(c, [old], holder="a"), until=until)
    [new] = session.run(lambda c: leases.take(c, ["x"], holder="b", duration_s=30), until=until)
    assert new.token > old.token
    with pytest.raises(LeaseLostError):
        session.transact(lambda c: leases.require(c, old), until=until)


def test_a_holder_stops_before_the_database_gives_the_lease_to_another(session: Session) -> None:
    [lease] = session.run(lambda c: leases.take(c, ["x"], holder="a", duration_s=1), until=time.monotonic() + 30)

    def other_takes() -> list[Lease]:
        return session.run(lambda c: leases.take(c, ["x"], holder="b", duration_s=1), until=time.monotonic() + 30)

    while not (taken := other_takes()):
        pass
    assert not lease.is_held
    assert taken[0].token > lease.token


def test_a_database_that_has_lost_its_last_transactions_gives_no_token_twice(session: Session) -> None:
    def run(work: Callable[[PatientConnection], T]) -> T:
        return session.run(work, until=time.monotonic() + 30)

    take = partial(leases.take, names=["x"], duration_s=30)
    run(lambda c: take(c, holder="a"))
    run(lambda c: c.execute("CREATE TABLE before AS SELECT * FROM leases"))
    run(lambda c: c.execute("UPDATE leases SET until = 'epoch'"))
    [lost] = run(lambda c: take(c, holder="b"))
    # Given a standby that has not heard of b's lease, and now has taken the place of the database
    run(lambda c: c.execute("DELETE FROM leases"))
    run(lambda c: c.execute("INSERT INTO leases SELECT name, holder, token, 'epoch' FROM before"))
    # When it gives the lease to another one
    [new] = run(lambda c: take(c, holder="c"))
    # Then b, which believes that it still has the lease, changes nothing
    assert lost.is_held
    assert new.token != lost.token
    session.transact(lambda c: leases.require(c, new), until=time.monotonic() + 30)
    with pytest.raises(LeaseLostError):
        session.transact(lambda c: leases.require(c, lost), until=time.monotonic() + 30)


def test_a_process_paused_within_a_fenced_change_does_not_keep_others_from_taking_over(
    url: str, session: Session
) -> None:
    [lease] = session.run(lambda c: leases.take(c, ["x"], holder="a", duration_s=1), until=time.monotonic() + 30)
    paused = Session(store_url(url))

    def pause(connection: psycopg.Connection[tuple[object, ...]]) -> list[Lease]:
        leases.require(connection, lease)  # type: ignore[arg-type]
        taken: list[Lease] = []
        while not taken:
            taken = session.run(lambda c: leases.take(c, ["x"], holder="b", duration_s=30), until=time.monotonic() + 30)
        return taken

    with pytest.raises(LeaseLostError):  # the first attempt's transaction was ended, the second finds the lease gone
        paused.transact(pause, until=time.monotonic() + 30)
    paused.close()


def test_no_message_contains_the_password(server: Postgresql) -> None:
    wrong = Session(store_url(server.url(host="/nowhere")))
    with pytest.raises(StoreError) as caught:
        wrong.run(machines.living, until=time.monotonic())
    assert PASSWORD not in str(caught.value)
