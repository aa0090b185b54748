"""Events with copies in PostgreSQL: accepted only with a copy, run by another machine if theirs dies, never lost."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import Project, Running, eventually
from tests.integration.postgresql import PASSWORD, Postgresql
from thawd.errors import UnknownOutcomeError
from thawd.resources import StoreUrl
from thawd.stores.cluster import event_copies, leases, machines, schema
from thawd.stores.cluster.access import ClusterDatabase
from thawd.stores.cluster.copier import EventCopier
from thawd.stores.cluster.leases import Lease
from thawd.stores.cluster.sessions import Session
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.schema import open_state

EVENTS = 12
RECOVERY_S = 10.0
CODE = """
import json, os, time

def handler(event, context):
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.01)
    log = os.open(os.environ["RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{event['n']} {time.time()}\\n".encode())
    os.close(log)
    if event.get("fails"):
        raise ValueError("as it should")
    return event

def other(event, context):
    return handler({**event["responsePayload"], "n": -event["responsePayload"]["n"]}, context)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        yield running


class Cluster:
    """Projects with the same configuration and different data folders, which share a database.

    Attributes:
        gate: events that name it wait until the file exists.
    """

    def __init__(self, folder: Path, url: str, schema: str) -> None:
        self.gate = folder / "gate"
        self.url = url
        self._folder = folder
        self._runs = folder / "runs"
        self._schema = schema
        self._text = f"""
            durability = "cluster"
            state = "{url}&schema={schema}"

            [functions.app]
            handler = "app.handler"
            on_success = "table:{schema}"
            maximum_retry_attempts = 0
            timeout_s = 600
            environment = {{RUNS = "{self._runs}"}}

            [functions.first]
            handler = "app.handler"
            on_success = "function:other"
            timeout_s = 600
            environment = {{RUNS = "{self._runs}"}}

            [functions.other]
            handler = "app.other"
            environment = {{RUNS = "{self._runs}"}}

            [tables.{schema}]
            url = "{url}"
            """

    def machine(self, name: str) -> Project:
        root = self._folder / name
        root.mkdir()
        project = Project(root)
        project.code(CODE)
        project.config(self._text)
        return project

    def runs(self) -> Counter[int]:
        """How often each event ran, by its number."""
        text = self._runs.read_text() if self._runs.exists() else ""
        return Counter(int(line.split()[0]) for line in text.splitlines())

    def copies(self) -> Counter[str]:
        """Number of copies, by owner."""
        with psycopg.connect(self.url, autocommit=True) as sql:
            found = sql.execute(f"SELECT owner FROM {self._schema}.event_copies")  # type: ignore[arg-type]
            return Counter(row[0] for row in found)

    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows in the table, by request id."""
        with psycopg.connect(self.url, autocommit=True) as sql:
            try:
                return dict(sql.execute(f"SELECT key, item FROM {self._schema}").fetchall())  # type: ignore[arg-type]
            except psycopg.errors.UndefinedTable:
                return {}

    def send(self, running: Running, numbers: range, function: str = "app", **event: Any) -> dict[str, int]:
        """Send events that wait for the gate; returns their numbers by request id."""

        def one(number: int) -> tuple[str, int]:
            payload = json.dumps({"n": number, "gate": str(self.gate), **event})
            answer = running.client().invoke(FunctionName=function, InvocationType="Event", Payload=payload)
            assert answer["StatusCode"] == 202
            return answer["ResponseMetadata"]["RequestId"], number

        with ThreadPoolExecutor(8) as threads:
            return dict(threads.map(one, numbers))


@pytest.fixture
def cluster(server: Postgresql, tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    return Cluster(tmp_path, server.url(), request.node.name[5:50])


def numbers_of(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {request_id: row["n"] for request_id, row in rows.items()}


def test_events_of_a_machine_that_is_killed_run_on_another(cluster: Cluster) -> None:
    first, second = cluster.machine("a"), cluster.machine("b")
    with second.up() as b:
        with first.up() as a:
            # Given events that wait or run, a dead letter, and an event that a function's answer has caused
            cluster.send(a, range(1000, 1001), fails=True, gate="/")
            eventually(lambda: dead_letters(server_copy(cluster)) == 1)
            sent = cluster.send(a, range(1, EVENTS + 1))
            cluster.send(a, range(2000, 2001), "first")
            name = (first.data / "machine").read_text().strip()
            assert cluster.copies() == {name: EVENTS + 2}
            # When their machine dies
            a.process.send_signal(signal.SIGKILL)
            killed_at = time.time()
        cluster.gate.touch()
        # Then the other machine runs each of them, within ten seconds
        eventually(lambda: numbers_of(cluster.rows()) == sent)
        assert b.function("app")["dead"] == 1
        eventually(lambda: cluster.runs()[-2000])
        ran = Counter({n: count for n, count in cluster.runs().items() if 0 < n <= EVENTS})
        assert ran == Counter(sent.values())
        assert max(run_times(cluster)) - killed_at < RECOVERY_S
        eventually(lambda: cluster.copies() == {(second.data / "machine").read_text().strip(): 1})  # the dead letter
        # And when the first machine is back, it runs none of them a second time
        runs = cluster.runs()
        with first.up() as a:
            again = cluster.send(a, range(5000, 5001))
            eventually(lambda: again.keys() <= cluster.rows().keys())
            assert cluster.runs() - runs == Counter([5000])
            eventually(lambda: name not in cluster.copies())
            assert {a.function("app")[what] for what in ("queued", "leased", "dead")} == {0}


def server_copy(cluster: Cluster) -> list[bytes]:
    """The progress of all copies."""
    with psycopg.connect(cluster.url, autocommit=True) as sql:
        found = sql.execute(f"SELECT progress FROM {cluster._schema}.event_copies")  # type: ignore[arg-type]
        return [row[0] for row in found if row[0] is not None]


def dead_letters(progress: list[bytes]) -> int:
    return sum(b"RetriesExhausted" in one for one in progress)


def run_times(cluster: Cluster) -> list[float]:
    return [
        float(line.split()[1]) for line in cluster._runs.read_text().splitlines() if 0 < int(line.split()[0]) < 1000
    ]


def test_a_removed_dead_letter_has_no_copy_and_an_undo_brings_it_back_on_its_machine(cluster: Cluster) -> None:
    machine = cluster.machine("a")
    with machine.up() as a:
        cluster.send(a, range(1000, 1002), fails=True, gate="/")
        eventually(lambda: dead_letters(server_copy(cluster)) == 2)
        assert machine.command("dead", "rm", "--all").stdout == "2 dead letters removed\n"
        eventually(lambda: not cluster.copies())
        assert machine.command("dead", "undo").stdout == "2 dead letters restored\n"
        assert a.function("app")["dead"] == 2
    with machine.up() as a:
        assert a.function("app")["dead"] == 2
        assert machine.command("dead", "redrive", "--all").stdout == "2 dead letters queued again\n"
        eventually(lambda: cluster.runs()[1000] == cluster.runs()[1001] == 2)


def test_a_machine_that_was_paused_forgets_the_events_that_another_took_over(cluster: Cluster) -> None:
    first, second = cluster.machine("a"), cluster.machine("b")
    with second.up(), first.up() as a:
        sent = cluster.send(a, range(1, EVENTS + 1))
        eventually(lambda: a.function("app")["environments"]["busy"] > 0)
        a.process.send_signal(signal.SIGSTOP)
        eventually(lambda: cluster.copies() == {(second.data / "machine").read_text().strip(): EVENTS})
        cluster.gate.touch()
        eventually(lambda: len(cluster.rows()) == EVENTS)
        a.process.send_signal(signal.SIGCONT)
        eventually(lambda: a.function("app")["queued"] == a.function("app")["leased"] == 0)
        eventually(lambda: not cluster.copies())
        assert numbers_of(cluster.rows()) == sent
        # Those that ran when their machine was paused ran on both machines.
        assert all(count <= 2 for count in cluster.runs().values())
        assert sum(cluster.runs().values()) < 2 * EVENTS


def test_a_machine_that_restarts_alone_runs_its_own_events_once(cluster: Cluster) -> None:
    machine = cluster.machine("a")
    with machine.up() as a:
        sent = cluster.send(a, range(1, 11))
        a.process.send_signal(signal.SIGKILL)
    cluster.gate.touch()
    with machine.up() as a:
        eventually(lambda: numbers_of(cluster.rows()) == sent)
        eventually(lambda: not cluster.copies())
    assert cluster.runs() == Counter(sent.values())


def test_a_copy_that_another_machine_has_taken_over_is_not_refused_but_unknown(server: Postgresql) -> None:
    url = StoreUrl(text=server.url(schema="moved"), shown="postgresql://thawd:***@there", secrets=(PASSWORD,))
    schema.prepare(url)
    session, until = Session(url), time.monotonic() + 300
    names = [machines.lease_name(name) for name in "ab"]
    a, b = session.run(lambda c: leases.take(c, names, holder="both", duration_s=300), until=until)

    def place(connection: Any) -> None:
        event_copies.place(connection, ["key"], [b"event"], owner="a", lease=a)

    def withdraw(connection: Any) -> None:
        event_copies.withdraw(connection, ["key"], owner="a")

    for _ in range(2):
        session.run(place, until=until)
        session.run(withdraw, until=until)
    # Given a copy of a machine that is cut off before it gets the database's answer
    session.run(place, until=until)
    session.run(lambda c: c.execute("UPDATE leases SET until = 'epoch' WHERE name = %s", (a.name,)), until=until)
    # When another machine takes the event over, and has run it
    take_over = partial(event_copies.take_over, dead="a", owner="b", lease=b, limit=10)
    assert session.run(take_over, until=until) == ["key"]
    session.run(lambda c: event_copies.follow(c, ended=["key"], changed=(), owner="b"), until=until)
    # Then the first one does not say that the event was not accepted
    for late in (place, withdraw):
        with pytest.raises(UnknownOutcomeError):
            session.run(late, until=until)
    session.close()


def test_an_event_is_suspected_if_it_runs_when_its_machines_die_and_not_if_it_waits(
    server: Postgresql, tmp_path: Path
) -> None:
    url = StoreUrl(text=server.url(schema="suspected"), shown="postgresql://thawd:***@there", secrets=(PASSWORD,))
    schema.prepare(url)
    deaths = 12

    async def work() -> dict[str, int]:
        database = ClusterDatabase(url)
        held: dict[str, Lease] = {}
        states = {name: open_state(tmp_path / f"{name}.db") for name in "ab"}
        copiers = {
            name: EventCopier(state, database, machine=name, membership=partial(held.get, name), report=print)
            for name, state in states.items()
        }

        async def comes(name: str) -> None:
            take = partial(leases.take, names=[machines.lease_name(name)], holder=name, duration_s=300)
            [held[name]] = await database.run(take)
            row = machines.Identity(name, "")
            await database.run(partial(machines.store, machine=row, token=held[name].token, summary=b""))
            await copiers[name]._join(held[name])

        async def dies(name: str) -> None:
            until = "UPDATE leases SET until = 'epoch' WHERE name = %s"
            await database.run(lambda connection: connection.execute(until, (machines.lease_name(name),)))

        try:
            await comes("a")
            events = [NewEvent(function="f", payload=b"", request_id=name, source="") for name in ("runs", "waits")]
            await EventQueue(states["a"], copies=copiers["a"]).put(events)
            found: list[Any] = []
            for death in range(deaths):
                dead, other = ("a", "b") if death % 2 == 0 else ("b", "a")
                await dies(dead)
                await comes(other)
                await copiers[other]._take_over(held[other])
                query = "SELECT request_id, id, interruptions FROM events"
                found = await states[other].read(lambda connection, query=query: connection.execute(query).fetchall())
                for name, event_id, interruptions in found:
                    if name == "runs" and interruptions:
                        await copiers[other].note_run(event_id, runs=True)
            return {name: interruptions for name, _, interruptions in found}
        finally:
            database.close()
            for state in states.values():
                state.close()

    assert asyncio.run(work()) == {"runs": deaths - 1, "waits": 1}


def test_copies_that_the_database_has_lost_are_made_again_while_their_machine_serves(cluster: Cluster) -> None:
    with cluster.machine("a").up() as a:
        sent = cluster.send(a, range(1, EVENTS + 1))
        with psycopg.connect(cluster.url, autocommit=True) as sql:
            # Given a standby that lacks the last transactions, and takes the place of the database
            sql.execute(f"DELETE FROM {cluster._schema}.event_copies")  # type: ignore[arg-type]
            tokens = sql.execute(f"SELECT token FROM {cluster._schema}.leases").fetchall()  # type: ignore[arg-type]
            sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            # Then the copies are there again, although the machine has kept its lease
            eventually(lambda: cluster.copies().total() == EVENTS, what="the copies")
            assert sql.execute(f"SELECT token FROM {cluster._schema}.leases").fetchall() == tokens  # type: ignore[arg-type]
        cluster.gate.touch()
        eventually(lambda: numbers_of(cluster.rows()) == sent)
        eventually(lambda: not cluster.copies())


def test_nothing_is_accepted_while_the_database_is_gone_and_nothing_accepted_is_lost(tmp_path: Path) -> None:
    with Postgresql() as own:
        cluster = Cluster(tmp_path, own.url(), "restarts")
        with cluster.machine("a").up() as a:
            own.stop()
            with pytest.raises(ClientError) as refused:
                cluster.send(a, range(1, 2))
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in (500, 503)
            assert PASSWORD not in str(refused.value)
            assert quote(PASSWORD, safe="") not in str(refused.value)
            own.start()
            accepted: dict[str, int] = {}
            doubtful = set()
            for number in range(10, 40):
                if number % 10 == 5:
                    own.restart()
                try:
                    accepted |= cluster.send(a, range(number, number + 1))
                except ClientError:
                    doubtful.add(number)
            cluster.gate.touch()
            eventually(lambda: accepted.keys() <= cluster.rows().keys())
            eventually(lambda: not cluster.copies())
            rows = numbers_of(cluster.rows())
            assert set(rows.values()) - set(accepted.values()) <= doubtful | {1}
            assert len(set(rows.values())) == len(rows)
            assert not any(PASSWORD in line or quote(PASSWORD, safe="") in line for line in a.output)
            assert (a.project.data / "machine").stat().st_mode & 0o077 == 0
