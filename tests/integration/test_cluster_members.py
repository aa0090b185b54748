"""Machines that find each other in a database: who belongs to the cluster, and who may use how much of a limit."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql
import pytest
from botocore.exceptions import ClientError

from tests.integration.cables import Cable
from tests.integration.clusters import registered, until_alive
from tests.integration.conftest import Running, eventually
from tests.integration.postgresql import DEFAULT_PORT, Postgresql

LIMIT = 4
TAKEOVER_S = 5.0
CONFIG = f"""
[functions.app]
handler = "app.handler"
reserved_concurrency = {LIMIT}
timeout_s = 2
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        yield running


class Machines:
    """Machines that share a database."""

    def __init__(self, root: Path, server: Postgresql, schema: str) -> None:
        self._root = root
        self._server = server
        self.schema = schema

    @contextlib.contextmanager
    def up(
        self, names: str, *, config: str = CONFIG, server: str = "", cables: Mapping[str, Cable] | None = None
    ) -> Iterator[dict[str, Running]]:
        """Start machines with these one-letter names; some reach the database over a cable."""
        with contextlib.ExitStack() as stack:
            running = {}
            for name in names:
                cable = (cables or {}).get(name)
                state = self._server.url(host=cable and str(cable.folder), schema=self.schema)
                project = registered(self._root, name, state, config, server=server)
                project.code(TICK, "tick.py")
                running[name] = stack.enter_context(project.up())
            for each in running.values():
                until_alive(each, names)
            yield running


@pytest.fixture
def machines(server: Postgresql, tmp_path: Path, request: pytest.FixtureRequest) -> Machines:
    return Machines(tmp_path, server, request.node.name[5:50])


def at_once(running: Running, count: int, gate: Path) -> list[Any]:
    """Send requests that wait for the gate, and wait until each of them runs or was refused; returns the answers."""
    with ThreadPoolExecutor(count) as threads:
        asked = [threads.submit(running.invoke, "app", {"gate": str(gate)}) for _ in range(count)]
        eventually(lambda: sum(each.done() for each in asked) == count - LIMIT, what="that the rest was refused")
        gate.touch()
        return [each.result(300)[0]["machine"] for each in asked if each.exception() is None]


def test_machines_share_a_limit_and_the_share_of_one_that_is_cut_off_and_refuses_everything_moves(
    machines: Machines, server: Postgresql, tmp_path: Path
) -> None:
    with Cable(server.folder / f".s.PGSQL.{DEFAULT_PORT}") as cable, machines.up("ab", cables={"b": cable}) as both:
        for each in both.values():
            eventually(lambda each=each: each.status()["cluster"]["shares"] == {"app": LIMIT // 2}, what="equal shares")
        assert sorted(at_once(both["a"], LIMIT + 2, tmp_path / "first")) == [*"aabb"]
        cable.cut()
        both["b"].until_said("cut off from its cluster")
        for kind in ("RequestResponse", "Event"):
            with pytest.raises(ClientError) as refused:
                both["b"].client().invoke(FunctionName="app", Payload=b"{}", InvocationType=kind)
            assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
        # What b began before may run until its timeout, and only then a may use the whole limit.
        eventually(lambda: both["a"].status()["cluster"]["shares"] == {"app": LIMIT}, what="the whole limit")
        assert at_once(both["a"], LIMIT + 1, tmp_path / "gate") == ["a"] * LIMIT
        cable.mend()
        until_alive(both["a"], "ab")
        eventually(lambda: both["b"].status()["cluster"]["shares"] == {"app": LIMIT // 2}, what="a share for b")


SCHEDULED = """
[functions.tick]
handler = "tick.handler"
on_success = "table:ticks"

[schedules.often]
function = "tick"
schedule = "rate(1 minute)"
missed = "all"

[tables.ticks]
url = "{url}"
"""
TICK = "def handler(event, context):\n    return event\n"


def test_schedules_run_on_one_machine_and_another_continues_whatever_happens_to_it(
    server: Postgresql, machines: Machines
) -> None:
    config = SCHEDULED.format(url=server.url())
    with contextlib.ExitStack() as stack:
        cables = {name: stack.enter_context(Cable(server.folder / f".s.PGSQL.{DEFAULT_PORT}")) for name in "ab"}
        both = stack.enter_context(machines.up("ab", config=config, server="durability = 'cluster'\n", cables=cables))
        for fault in ("pause", "cut", "kill"):
            leader = eventually(lambda: leading(both), what="a leader")
            other = "ab".replace(leader, "")
            owed = rewind(server, machines, minutes=3)
            if fault == "cut":
                cables[leader].cut()
            else:
                number = signal.SIGSTOP if fault == "pause" else signal.SIGKILL
                both[leader].process.send_signal(number)
            begun_s = time.monotonic()
            eventually(lambda other=other: both[other].status()["cluster"]["leads"], what="another leader")
            assert time.monotonic() - begun_s < TAKEOVER_S
            # The other one continues where the first one was, so each scheduled time has one run.
            eventually(lambda owed=owed: len(runs(server)) >= owed, what="a run for each time that was missed")
            times = [run["time"] for run in runs(server)]
            assert len(set(times)) == len(times)
            if fault != "kill":
                cables[leader].mend()
                both[leader].process.send_signal(signal.SIGCONT)
                eventually(lambda leader=leader: both[leader].status()["cluster"]["member"], what="its return")
                assert leading(both) == other


def leading(running: Mapping[str, Running]) -> str:
    """The machine that says that it leads; empty: none does."""
    found = [name for name, each in running.items() if each.status()["cluster"]["leads"]]
    assert len(found) <= 1
    return "".join(found)


def rewind(server: Postgresql, machines: Machines, *, minutes: int) -> int:
    """Move the schedule's progress back, as if nothing had happened for so long. Returns how many runs are owed."""
    with psycopg.connect(server.url(), autocommit=True) as sql:
        table = psycopg.sql.Identifier(machines.schema, "schedules")

        def progress() -> Any:
            return sql.execute(psycopg.sql.SQL("SELECT state FROM {}").format(table)).fetchone()

        with contextlib.suppress(psycopg.errors.UndefinedTable):
            sql.execute("DELETE FROM ticks")
        state = json.loads(eventually(progress, what="the schedule's progress")[0])
        state |= {"anchor": state["anchor"] - 60 * minutes, "done_until": state["done_until"] - 60 * minutes}
        sql.execute(psycopg.sql.SQL("UPDATE {} SET state = %s").format(table), (json.dumps(state).encode(),))
    return minutes


def runs(server: Postgresql) -> list[dict[str, Any]]:
    """The runs of the schedule, as the table has them."""
    with psycopg.connect(server.url(), autocommit=True) as sql:
        try:
            return [row[0] for row in sql.execute("SELECT item FROM ticks").fetchall()]
        except psycopg.errors.UndefinedTable:
            return []
