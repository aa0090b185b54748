"""A cluster of hosts with addresses of their own, which are network namespaces, while their network is cut.

What is simulated: the hosts share a kernel, a clock and a disk. Each has its own network, server and data folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import hosts as namespaces
from tests.certificates import make_certificates
from tests.hosts import Host
from tests.integration.clusters import machine
from tests.integration.conftest import Running, eventually
from tests.integration.postgresql import PASSWORD, Postgresql
from thawd.cluster import channel
from thawd.cluster.links import Credentials, Link
from thawd.resources import StoreUrl
from thawd.stores.cluster import schema
from thawd.stores.cluster.sessions import Session

FUNCTION = '[functions.app]\nhandler = "app.handler"\nreserved_concurrency = 2\nprovisioned_concurrency = 2\n'


class Site:
    """A machine of the cluster on its host."""

    def __init__(self, host: Host, running: Running) -> None:
        self.host = host
        self.running = running

    def invoke(self, event: Any) -> tuple[int, Any]:
        return self.host.invoke(self.running.url, "app", event)

    def alive(self) -> set[str]:
        """Names of the machines that this one regards as alive."""
        status = self.host.request(self.running.url, "GET", "/_thawd/status")[1]
        return {name for name, each in status["cluster"]["machines"].items() if each["alive"]}

    def knows_idle(self, name: str) -> bool:
        status = self.host.request(self.running.url, "GET", "/_thawd/status")[1]
        return bool(status["cluster"]["machines"][name]["idle"])

    def counts(self) -> dict[str, int]:
        status: dict[str, int] = self.host.request(self.running.url, "GET", "/_thawd/status")[1]["cluster"]
        return status


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """Two machines that speak mutual TLS over a network."""
    if (why := namespaces.why_none()) is not None:
        pytest.skip(why)
    root = tmp_path_factory.mktemp("hosts")
    certificate, authority = make_certificates(root)
    options = f'certificate = "{certificate}"\nauthority = "{authority}"'
    with namespaces.hosts(2, root) as found, contextlib.ExitStack() as stack:
        placed = dict(zip("ab", found, strict=True))
        addresses = {name: f"{host.address}:8351" for name, host in placed.items()}
        started = {}
        for name, host in placed.items():
            project = machine(root, name, addresses, FUNCTION, options=options)
            started[name] = Site(host, stack.enter_context(project.up(python=host.python())))
        for site in started.values():
            eventually(lambda site=site: site.alive() == {"a", "b"}, what="two machines alive")
        yield started


@contextlib.contextmanager
def busy(site: Site, gate: Path) -> Iterator[None]:
    """Occupy the only environment of a machine."""
    with ThreadPoolExecutor(1) as threads:
        request = threads.submit(site.invoke, {"gate": str(gate)})
        try:
            eventually(
                lambda: (
                    site.host.request(site.running.url, "GET", "/_thawd/status")[1]["functions"]["app"]["environments"][
                        "busy"
                    ]
                    == 1
                )
            )
            yield
        finally:
            gate.touch()
        assert request.result(300)[0] == 200


def test_requests_are_forwarded_over_the_network_by_tls(sites: dict[str, Site], tmp_path: Path) -> None:
    with busy(sites["a"], tmp_path / "gate"):
        eventually(lambda: sites["a"].knows_idle("b"))
        status, answer = sites["a"].invoke({"data": "x" * 100_000})
        assert (status, answer["machine"], answer["bytes"]) == (200, "b", 100_000)


@pytest.mark.parametrize("is_one_way", [False, True], ids=["both-ways", "one-way"])
def test_a_request_on_a_machine_that_is_cut_off_fails_and_does_not_run_again(
    sites: dict[str, Site], tmp_path: Path, is_one_way: bool
) -> None:
    a, b = sites["a"], sites["b"]
    eventually(lambda: a.alive() == b.alive() == {"a", "b"}, what="two machines alive")
    runs, gate = tmp_path / "runs", tmp_path / "never"
    lost = a.counts()["lost"]
    with busy(a, tmp_path / "gate"), ThreadPoolExecutor(1) as threads:
        eventually(lambda: a.knows_idle("b"))
        forwarded = threads.submit(a.invoke, {"file": str(runs), "gate": str(gate)})
        eventually(lambda: runs.exists() and runs.read_text(), what="the run on b")
        if is_one_way:
            b.host.hears_only(a.host, yes=True)
        else:
            b.host.plug(is_in=False)
        try:
            status, answer = forwarded.result(300)
            assert status == 500
            assert "it is unknown whether the function has run" in answer["Message"]
            assert a.counts()["lost"] == lost + 1
            eventually(lambda: a.alive() == {"a"}, what="that a regards b as dead")
            status, answer = a.invoke({})
            assert status == 429  # this machine's share is used, and b cannot be reached
        finally:
            if is_one_way:
                b.host.hears_only(a.host, yes=False)
            else:
                b.host.plug(is_in=True)
            gate.touch()
    assert len(runs.read_text().splitlines()) == 1
    eventually(lambda: a.alive() == b.alive() == {"a", "b"}, what="two machines alive again")


def test_the_database_notices_soon_that_a_machine_has_gone_without_a_word(tmp_path: Path) -> None:
    if (why := namespaces.why_none()) is not None:
        pytest.skip(why)
    with (
        namespaces.hosts(2, tmp_path, stem=f"tv{os.getpid() % 1_000_000}") as (one, other),
        contextlib.ExitStack() as stack,
    ):
        server = Postgresql(address=other.address)
        other.opened(lambda: stack.enter_context(server))
        url = StoreUrl(text=server.url(host=other.address), shown="there", secrets=(PASSWORD,))
        schema.prepare(StoreUrl(text=server.url(), shown="there", secrets=(PASSWORD,)))
        session = Session(url)
        stack.callback(session.close)
        one.opened(lambda: session.run(lambda c: c.execute("SELECT 1").fetchone(), until=time.monotonic() + 60))
        with psycopg.connect(server.url(), autocommit=True) as sql:

            def connections() -> int:
                row = sql.execute("SELECT count(*) FROM pg_stat_activity WHERE client_addr IS NOT NULL").fetchone()
                assert row is not None
                return int(row[0])

            assert connections() == 1
            one.plug(is_in=False)
            eventually(lambda: connections() == 0, what="the end of the connection")


async def test_a_connection_ends_when_its_data_is_not_acknowledged(tmp_path: Path) -> None:
    if (why := namespaces.why_none()) is not None:
        pytest.skip(why)
    with (
        namespaces.hosts(2, tmp_path, stem=f"tu{os.getpid() % 1_000_000}") as (one, other),
        contextlib.ExitStack() as stack,
    ):
        address = (other.address, 8351)
        server = stack.enter_context(other.opened(lambda: socket.create_server(address)))
        client = one.opened(lambda: socket.create_connection(address, timeout=300))
        client.setblocking(False)
        stack.enter_context(server.accept()[0])
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Link(Credentials("one", "key"), "other"), sock=client)
        link.limit_unacknowledged(0.5)
        other.plug(is_in=False)
        link.send(channel.SUMMARY, {})
        async with asyncio.timeout(60):
            await link.ended.wait()
