"""Machines with different versions of thawd in one cluster: side by side, and upgraded one after the other.

A newer thawd is this one with a later version, protocol and schema (`NEWER`). With the path of an interpreter in the
variable ``THAWD_EARLIER_PYTHON``, in whose environment an earlier thawd is installed, that thawd is the older one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.integration.clusters import machines_of, registered, until_alive
from tests.integration.conftest import Project, Running, eventually
from tests.integration.postgresql import Postgresql
from thawd.errors import StoreError
from thawd.resources import StoreUrl
from thawd.stores.cluster import machines, schema
from thawd.stores.cluster.lease_thread import LeaseThread
from thawd.stores.cluster.machines import About, Identity
from thawd.stores.cluster.schema import Migration

EARLIER = os.environ.get("THAWD_EARLIER_PYTHON", sys.executable)
# Python runs this module at its start. Only servers and commands are newer, not the processes of functions.
NEWER = """
import sys
if "thawd" in sys.orig_argv:
    import thawd
    thawd.__version__ = "9.9.9"
    from thawd.cluster import handshake
    handshake.PROTOCOLS = handshake.Protocols({oldest}, 7)
    from thawd.stores.cluster import schema
    schema.MIGRATIONS += (
        schema.Migration("ALTER TABLE schedules ADD COLUMN note text NOT NULL DEFAULT ''"),
        schema.Migration("CREATE TABLE contracted ()", is_contraction=True),
    )
"""
CONFIG = """
[functions.app]
handler = "app.handler"
on_success = "table:{table}"

[tables.{table}]
url = "{url}"
"""
PUBLISHED = ("up", "--ready-when", "published")
EXPANSION = Migration("ALTER TABLE schedules ADD COLUMN note text NOT NULL DEFAULT ''")
CONTRACTION = Migration("CREATE TABLE contracted ()", is_contraction=True)
KNOWN = schema.MIGRATIONS
CLIENTS, ENOUGH = 6, 40


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        yield running


@pytest.fixture
def url(server: Postgresql, request: pytest.FixtureRequest) -> StoreUrl:
    name = f"s{zlib.crc32(request.node.name.encode())}"
    return StoreUrl(text=server.url(schema=name), shown="there")


def versions(url: StoreUrl) -> list[int]:
    base, _, name = url.text.rpartition("&schema=")
    with psycopg.connect(base, autocommit=True) as sql:
        return [row[0] for row in sql.execute(f"SELECT version FROM {name}.migrations ORDER BY 1")]  # type: ignore[arg-type]


@contextlib.contextmanager
def member(url: StoreUrl, name: str, summary: bytes) -> Iterator[LeaseThread]:
    """A machine that is alive, and says `summary` about itself."""
    joined = threading.Event()
    thread = LeaseThread(url, Identity(name, "127.0.0.1:1"), holder=name)
    thread.summary = summary
    thread.start(on_gained=lambda lease: joined.set(), on_lost=lambda lease: None)
    assert joined.wait(60)
    try:
        yield thread
    finally:
        thread.close()


def test_expansions_run_beside_older_machines_which_can_start_again(
    url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.prepare(url)
    with member(url, "old", b""):
        monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, EXPANSION))
        assert schema.prepare(url) == []
        assert versions(url) == [1, 2, 3, 4]
    # When the older machine starts again, it finds columns that it does not know
    monkeypatch.setattr(schema, "MIGRATIONS", KNOWN)
    assert schema.prepare(url) == []
    with member(url, "old", b""):
        assert versions(url) == [1, 2, 3, 4]


@pytest.mark.parametrize("summary", [b"", machines.encoded(About(thawd="0.1.0", schema=4))], ids=["silent", "told"])
def test_a_contraction_waits_until_no_older_machine_is_alive_and_then_refuses_them(
    url: StoreUrl, monkeypatch: pytest.MonkeyPatch, summary: bytes
) -> None:
    schema.prepare(url)
    with member(url, "old", summary), member(url, "new", machines.encoded(About(thawd="9.9.9", schema=6))):
        # A later expansion does not wait for the contraction before it.
        monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, EXPANSION, CONTRACTION, Migration("CREATE TABLE later ()")))
        [waits_for] = schema.prepare(url)
        assert waits_for.startswith("old (thawd ")
        assert versions(url) == [1, 2, 3, 4, 6]
    with member(url, "new", machines.encoded(About(thawd="9.9.9", schema=6))):
        assert schema.prepare(url) == []
        assert versions(url) == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr(schema, "MIGRATIONS", KNOWN)
    with pytest.raises(StoreError, match=r"were made by a newer thawd .* use the newer thawd"):
        schema.prepare(url)


def test_an_older_machine_that_was_cut_off_during_a_contraction_gets_no_lease(
    url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.prepare(url)
    reports: list[str] = []
    reported = threading.Event()
    with member(url, "old", b"") as old:
        old.retire()
        monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, CONTRACTION))
        assert schema.prepare(url) == []
        monkeypatch.setattr(schema, "MIGRATIONS", KNOWN)
        old._reports.report = lambda line: (reports.append(line), reported.set())
        old.resume()
        assert reported.wait(60)
        assert "made by a newer thawd" in reports[0]
        assert old.membership is None
    with psycopg.connect(url.text.rpartition("&schema=")[0]) as sql:
        name = url.text.rpartition("=")[2]
        held = f"SELECT name FROM {name}.leases WHERE until > clock_timestamp()"
        assert sql.execute(held).fetchall() == []  # type: ignore[arg-type]


def newer(folder: Path, *, oldest: int) -> dict[str, str]:
    """Variables of a process that is a newer thawd."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(NEWER.format(oldest=oldest))
    return {"PYTHONPATH": str(folder), "THAWD_TESTS_EXECUTE": "1"}


def project(root: Path, name: str, server: Postgresql, table: str) -> Project:
    state = server.url(schema=table)
    config = CONFIG.format(table=table, url=server.url())
    return registered(root, name, state, config, server='durability = "cluster"\n')


def test_machines_without_a_common_protocol_say_so_and_each_goes_on_alone(server: Postgresql, tmp_path: Path) -> None:
    first, second = (project(tmp_path, name, server, "alone") for name in ("a", "b"))
    with first.up() as a, second.up(command=PUBLISHED, environ=newer(tmp_path / "newer", oldest=7)) as b:
        eventually(lambda: "b" in machines_of(a) and "a" in machines_of(b), what="that each knows the other")
        reason = "speaks version {} of the protocol between machines, and this machine version {}"
        a.until_said("b " + reason.format(7, 1))
        b.until_said("a " + reason.format(1, 7))
        shown = first.command("cluster", "status").stdout
        assert "a: the machine b cannot be reached: b " + reason.format(7, 1) in shown
        assert "9.9.9" in shown
        b.until_said("changes of the cluster's tables wait until these machines are upgraded: a (thawd ")
        assert (
            "changes of the tables wait until these are upgraded: a (thawd"
            in second.command("cluster", "status").stdout
        )
        # Each serves requests and events, and takes the other's events over.
        ids = set()
        for each in (a, b):
            assert each.invoke("app", {})[1] is None
            answer = each.client().invoke(FunctionName="app", InvocationType="Event", Payload="{}")
            ids.add(answer["ResponseMetadata"]["RequestId"])
        eventually(lambda: set(rows(server, "alone")) == ids, what="a row for each event")
        a.process.send_signal(signal.SIGKILL)
        a.process.wait(300)
        b.until_said("the cluster's tables are those of this version")
        refused = first.command("up")
        assert "were made by a newer thawd" in refused.stderr


def rows(server: Postgresql, table: str) -> Counter[str]:
    with psycopg.connect(server.url(), autocommit=True) as sql:
        try:
            return Counter(key for (key,) in sql.execute(f"SELECT key FROM {table}"))  # type: ignore[arg-type]
        except psycopg.errors.UndefinedTable:
            return Counter()


class Balancer:
    """Sends requests and events all the time to machines that are ready, as a load balancer does.

    Attributes:
        events: request ids of events that were accepted.
        answered: number of requests that were answered.
        refused: number of requests that got 503 from a machine that was being drained, so they have not run.
        failures: what else happened.
    """

    def __init__(self, machines: dict[str, Running]) -> None:
        self.machines = machines
        self.events: list[str] = []
        self.answered = 0
        self.refused = 0
        self.failures: list[str] = []
        self._ending = threading.Event()

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as threads:
            sent = [threads.submit(self._work, number) for number in range(CLIENTS)]
            try:
                yield
            finally:
                self._ending.set()
        for each in sent:
            each.result()

    def more(self) -> None:
        """Wait until more requests and events have been answered."""
        answered, events = self.answered + ENOUGH, len(self.events) + ENOUGH
        eventually(lambda: self.answered >= answered and len(self.events) >= events, what="answers")

    def _work(self, number: int) -> None:
        while not self._ending.is_set():
            number += 1
            names = sorted(self.machines)
            running = self.machines.get(names[number % len(names)])
            if running is None or not _is_ready(running):
                continue
            request = urllib.request.Request(
                f"{running.url}/2015-03-31/functions/app/invocations",
                data=json.dumps({"n": number}).encode(),
                headers={"X-Amz-Invocation-Type": "Event" if number % 2 else "RequestResponse"},
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                    if answer.status == 202:
                        self.events.append(answer.headers["x-amzn-RequestId"])
                    else:
                        self.answered += 1
            except OSError as error:
                if isinstance(error, urllib.error.HTTPError) and error.code == 503:
                    self.refused += 1
                    continue
                self.failures.append(f"{running.project.root.name}: {error}")


def _is_ready(running: Running) -> bool:
    try:
        with urllib.request.urlopen(f"{running.url}/_thawd/ready", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_cluster_is_upgraded_machine_by_machine_and_drops_nothing(server: Postgresql, tmp_path: Path) -> None:
    projects = {name: project(tmp_path, name, server, "rolling") for name in "ab"}
    environ = newer(tmp_path / "newer", oldest=1)
    begun_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        # Given two machines with the older thawd, and clients
        older = {
            name: stack.enter_context(each.up(python=EARLIER, environ={"THAWD_TESTS_EXECUTE": "1"}))
            for name, each in projects.items()
        }
        balancer = Balancer(older)
        for running in balancer.machines.values():
            until_alive(running, "ab")
        with balancer.sending():
            for name in "ab":
                balancer.more()
                # When one is drained, stopped, and started again with the newer thawd
                drained = projects[name].command("cluster", "drain")
                assert drained.returncode == 0, drained.stderr
                balancer.machines = {other: each for other, each in balancer.machines.items() if other != name}
                assert older[name].stop() == 0
                balancer.more()
                balancer.machines = {
                    **balancer.machines,
                    name: stack.enter_context(projects[name].up(command=PUBLISHED, environ=environ)),
                }
            for running in balancer.machines.values():
                until_alive(running, "ab")
            balancer.more()
        # Then nothing was dropped or ran twice, and the tables are those of the newer thawd
        assert balancer.failures == []
        # The first thawd with a cluster refused requests that entered while load balancers had not noticed its drain.
        assert balancer.refused == 0 or sys.executable != EARLIER
        wanted = set(balancer.events)
        eventually(lambda: wanted <= rows(server, "rolling").keys(), what="a row for each event")
        found = rows(server, "rolling")
        assert set(found) == wanted
        assert set(found.values()) == {1}
        url = StoreUrl(text=server.url(schema="rolling"), shown="there")
        eventually(lambda: versions(url) == [1, 2, 3, 4, 5], what="the newer tables")
        assert {each.status()["cluster"]["versions"]["a"] for each in balancer.machines.values()} == {"9.9.9"}
    print(
        f"{balancer.answered:,} requests, {len(wanted):,} events, {balancer.refused} refused, 0 failed "
        f"in {time.monotonic() - begun_s:.0f} s"
    )
