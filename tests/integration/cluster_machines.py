"""Machines of a cluster that fail in several ways and come back, for `test_cluster_history`.

A machine is a thawd with a data folder of its own. Its network is a network namespace with an address of its own, if
the tests may make one; else it is a connection to the database that can be cut. Its disk is a small file system of its
own, if the tests may mount one. What is simulated: all machines share a kernel and a processor.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from tests import hosts as namespaces
from tests.hosts import Host
from tests.integration.cables import Cable
from tests.integration.cluster_history import Client
from tests.integration.clusters import registered
from tests.integration.conftest import Project, Running
from tests.integration.postgresql import DEFAULT_PORT, Postgresql
from thawd.stores.schema import DEAD

BOTH, SENT, RECEIVED = (), ("sent",), ("received",)
"""Which ways a network is cut: what the machine sends, or what it would receive; neither arrives with `BOTH`."""
_DISK_MIB = 192
# In the server, the wall clock is wrong by the number in a file. Its functions have the right time.
_WRONG_CLOCK = """
import os, sys, time
if "up" in sys.orig_argv:
    file, real = os.open(os.environ["WRONG_BY"], os.O_RDONLY), time.time
    time.time = lambda: real() + float(os.pread(file, 16, 0))
"""


class Network(Protocol):
    """How a machine reaches the database, and in a network namespace the other machines, too."""

    def cut(self, *ways: str) -> None:
        """Let nothing through: nothing that was ``sent``, nothing that would be ``received``, or by default neither."""

    def mend(self) -> None:
        """End what `cut` did."""


class Ports:
    """The network of a host, which is a network namespace."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ways: tuple[str, ...] | None = None

    def cut(self, *ways: str) -> None:
        self._ways = ways
        self._switch(is_on=False)

    def mend(self) -> None:
        if self._ways is not None:
            self._switch(is_on=True)
        self._ways = None

    def _switch(self, *, is_on: bool) -> None:
        if not self._ways:
            self._host.plug(is_in=is_on)
        for way in self._ways or ():
            self._host.drop(way, yes=not is_on)


class Site:
    """A machine that fails and comes back.

    Args:
        project: its folder.
        network: its network.
        host: the network namespace in which it runs; None: it runs in that of the tests.
    """

    def __init__(self, project: Project, network: Network, host: Host | None = None) -> None:
        self.name = project.root.name
        self.network = network
        self.running: Running | None = None
        self._project = project
        self._host = host
        self._up = contextlib.ExitStack()
        self._ballast = project.data / "ballast"
        self._clock = project.root / "wrong-by"

    @property
    def output(self) -> list[str]:
        """What the server that runs has printed."""
        return [] if self.running is None else self.running.output

    def start(self, *, wrong_s: float | None = None) -> None:
        """Start it.

        Args:
            wrong_s: by how much its wall clock is wrong, seconds; None: it has the clock of the tests.
        """
        environ = {}
        if wrong_s is not None:
            folder = self._project.root / "clock"
            folder.mkdir(exist_ok=True)
            (folder / "sitecustomize.py").write_text(_WRONG_CLOCK)
            self.set_clock(wrong_s)
            environ = {"PYTHONPATH": str(folder), "WRONG_BY": str(self._clock)}
        python = sys.executable if self._host is None else self._host.python()
        self.running = self._up.enter_context(self._project.up(environ=environ, python=python))

    def set_clock(self, wrong_s: float) -> None:
        """Set the wall clock of a server that was started with a wrong one."""
        self._clock.write_text(f"{wrong_s:<16}")

    def kill(self, *, has_no_power: bool = False) -> None:
        """Kill everything on the host; without a host, the server, with which its functions end.

        Args:
            has_no_power: whether others get no notice of it, because the host has no network meanwhile, either.
        """
        assert self.running is not None
        running, self.running = self.running, None
        if has_no_power:
            self.network.cut()
        if self._host is not None:
            self._host.signal_all(signal.SIGKILL)
        running.process.kill()
        running.process.wait()
        self._up.close()
        if has_no_power:
            self.network.mend()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which nothing runs on the host; without a host, not the server."""
        assert self.running is not None
        send = self.running.process.send_signal if self._host is None else self._host.signal_all
        send(signal.SIGSTOP)
        yield
        send(signal.SIGCONT)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """A context in which the disk is full."""
        with contextlib.suppress(OSError), open(self._ballast, "wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        try:
            yield
        finally:
            self._ballast.unlink()

    def connect(self) -> socket.socket:
        """Connect to the server.

        Raises:
            OSError: there is none.
        """
        running = self.running
        if running is None or not running.url:
            raise ConnectionRefusedError
        port = int(running.url.rpartition(":")[2])
        if self._host is not None:
            return self._host.connect(port)
        return socket.create_connection(("127.0.0.1", port), timeout=60)

    def client(self) -> Client:
        """A client of this machine."""
        return Client(self.connect)

    def events(self) -> list[str]:
        """The events in its state file, for the report of a failure."""
        query = (
            "SELECT p.body, e.function, e.qualifier, e.state, e.available_at, e.attempts, e.interruptions, e.error "
            "FROM events e JOIN payloads p ON p.event = e.id"
        )
        with contextlib.closing(sqlite3.connect(self._project.data / "thawd.db")) as state:
            return [str(row) for row in state.execute(query)]

    def dead_letters(self) -> dict[int, str]:
        """Why each number is a dead letter on this machine."""
        query = "SELECT p.body, e.condition, e.error FROM events e JOIN payloads p ON p.event = e.id WHERE e.state = ?"
        with contextlib.closing(sqlite3.connect(self._project.data / "thawd.db")) as state:
            found = state.execute(query, (DEAD,)).fetchall()
        return {json.loads(body)["n"]: f"{condition}: {error}" for body, condition, error in found}

    def close(self) -> None:
        self._up.close()


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk on a folder until the end of the block; whether the tests may do that."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m,mode=700", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass
class Machines:
    """The machines of a cluster and their database.

    Attributes:
        sites: the machines, which run.
        server: the database, reached through its Unix socket.
        has_disks: whether each machine has a small disk of its own.
        database_host: the network namespace of the database; None: that of the tests.
    """

    sites: list[Site]
    server: Postgresql
    has_disks: bool
    database_host: Host | None

    def start_database(self) -> None:
        """Start the database again."""
        _ = self.server.start() if self.database_host is None else self.database_host.opened(self.server.start)

    def state(self) -> str:
        """What the machines have printed, and which events they still have, for the report of a failure."""
        return "\n".join(f"--- {site.name}\n" + "\n".join([*site.output, *site.events()]) for site in self.sites)


@contextlib.contextmanager
def machines(root: Path, names: str, config: str, *, code: str, on_hosts: bool) -> Iterator[Machines]:
    """Start machines with these one-letter names, and a database; end them at the end of the block.

    Args:
        root: their folder.
        names: their names.
        config: what follows ``[server]`` and ``[cluster]`` in thawd.toml; DATABASE stands for the URL of the database.
        code: the module ``app``.
        on_hosts: whether each is a host of its own, which takes root.
    """
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(namespaces.hosts(len(names) + 1, root)) if on_hosts else []
        server = Postgresql(address=hosts[-1].address if hosts else "")
        enter = partial(stack.enter_context, server)
        _ = hosts[-1].opened(enter) if hosts else enter()
        found, has_disks = [], True
        for number, name in enumerate(names):
            host = hosts[number] if hosts else None
            if host is None:
                cable = stack.enter_context(Cable(server.folder / f".s.PGSQL.{DEFAULT_PORT}"))
                state, database, options = server.url(host=str(cable.folder), schema="history"), server.url(), ""
                network: Network = cable
            else:
                database = server.url(host=hosts[-1].address)
                state = server.url(host=hosts[-1].address, schema="history")
                options = f'address = "{host.address}:8351"\nunencrypted = true'
                network = Ports(host)
            text = config.replace("DATABASE", database)
            project = registered(root, name, state, text, options=options, server="durability = 'cluster'\n")
            project.code(code)
            has_disks &= stack.enter_context(disk(project.data))
            site = Site(project, network, host)
            stack.callback(site.close)
            found.append(site)
        for site in found:
            site.start()
        yield Machines(found, server, has_disks, hosts[-1] if hosts else None)
