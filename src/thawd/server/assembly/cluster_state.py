"""Makes this machine a member of a cluster: its name, its lease, and its connections to the cluster's database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import time
from functools import partial
from pathlib import Path

from thawd import __version__
from thawd.cluster import handshake
from thawd.errors import StoreError
from thawd.resources import StoreUrl
from thawd.server.port_and_folder_locks import StartError
from thawd.stores.cluster import cluster_settings, concurrency, machines, schema
from thawd.stores.cluster.access import ClusterDatabase
from thawd.stores.cluster.cluster_settings import AUTHORITY
from thawd.stores.cluster.copier import EventCopier
from thawd.stores.cluster.lease_thread import LeaseThread
from thawd.stores.cluster.leases import DURATION_S
from thawd.stores.cluster.machines import Identity
from thawd.stores.cluster.sessions import Session
from thawd.stores.database import Database
from thawd.system.retry import SayOnce, is_set_within
from thawd.telemetry.console import complain, say

_NAME_FILE = "machine"
# A machine that was killed a moment ago has its lease still, and must wait for its end.
_JOIN_S = DURATION_S + 10.0
_LEAVE_S = 2.0
_UPGRADE_LOOK_S = 3.0


class ClusterState:
    """This machine as a member of a cluster.

    Args:
        url: the cluster's database.
        data: the data folder; it has the machine's name in the file ``machine``, which is created if it is missing.
        address: where other machines reach this one.
        name: name of the machine; empty: the one in the data folder.

    Attributes:
        machine: name and address of this machine.
        database: the cluster's database; `open` sets this attribute and those below.
        leases: the leases of this machine.
        waits_for: older machines for which changes of the tables wait (`thawd.stores.cluster.schema`).
    """

    waits_for: list[str]
    database: ClusterDatabase
    leases: LeaseThread

    def __init__(self, url: StoreUrl, data: Path, *, address: str, name: str = "") -> None:
        self._url = url
        self.machine = Identity(name or machine_name(data), address)

    async def open(self, *, closing: contextlib.ExitStack) -> None:
        """Prepare the database and become a member.

        Args:
            closing: closes open resources when the server ends; other machines then take over.

        Raises:
            StartError: another process has this machine's name.
            StoreError: the database cannot be used, or psycopg is not installed.
        """
        schema.require_library(self._url)
        self.waits_for = await asyncio.to_thread(schema.prepare, self._url)
        self.database = ClusterDatabase(self._url)
        closing.callback(self.database.close)
        holder = f"{self.machine.name}/{secrets.token_hex(8)}"
        self.leases = LeaseThread(self._url, self.machine, holder=holder, report=complain)
        self.leases.summary = machines.encoded(
            machines.About(thawd=__version__, schema=len(schema.MIGRATIONS), protocols=handshake.PROTOCOLS)
        )
        closing.callback(self.leases.close)
        closing.callback(self._forget_shares)
        loop, joined = asyncio.get_running_loop(), asyncio.Event()

        def gained(lease: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(joined.set)

        self.leases.start(on_gained=gained, on_lost=lambda lease: complain(_CUT_OFF))
        if not await is_set_within(joined, _JOIN_S):
            raise StartError(
                f"the machine {self.machine.name} could not join its cluster: another process uses this name. If this "
                f"data folder is a copy of another machine's, remove the file {_NAME_FILE} from it"
            )
        say(f"this machine is {self.machine.name} in the cluster")
        if self.waits_for:
            closing.callback(loop.create_task(self._finish_upgrade()).cancel)

    async def _finish_upgrade(self) -> None:
        """Change the tables once no older machine is alive."""
        reports = SayOnce(complain)
        while self.waits_for:
            names = ", ".join(self.waits_for)
            reports.say(f"thawd: changes of the cluster's tables wait until these machines are upgraded: {names}")
            await asyncio.sleep(_UPGRADE_LOOK_S)
            with contextlib.suppress(StoreError):  # the thread of the leases reports that the database is away
                self.waits_for = await asyncio.to_thread(schema.prepare, self._url)
        say("the cluster's tables are those of this version: all machines are upgraded")

    async def require_authority(self, fingerprint: str) -> None:
        """Make sure that the cluster in this database has this machine's authority.

        Raises:
            StartError: it has another one.
        """
        if await self.database.run(partial(cluster_settings.claim, name=AUTHORITY, value=fingerprint)) != fingerprint:
            raise StartError(
                f"{self._url} belongs to a cluster with another authority; join that cluster with `thawd cluster join`"
            )

    def retire(self) -> None:
        """Give up this machine's shares of limits and its leases. Blocks for a few seconds at most."""
        self._forget_shares()
        self.leases.retire()

    def _forget_shares(self) -> None:
        """Leave this machine's shares of concurrency limits to the others now: nothing runs here any more."""
        session = Session(self._url)
        with contextlib.suppress(StoreError):
            if self.leases.membership is not None:
                forget = partial(concurrency.forget, machine=self.machine.name)
                session.run(forget, until=time.monotonic() + _LEAVE_S)
        session.close()

    def copier(self, state: Database) -> EventCopier:
        """Return what keeps the copies of this machine's events."""
        return EventCopier(
            state,
            self.database,
            machine=self.machine.name,
            membership=lambda: self.leases.membership,
            report=complain,
        )


_CUT_OFF = "thawd: this machine is cut off from its cluster: it accepts nothing until it is back"


def machine_name(data: Path) -> str:
    """Return the name of the machine with this data folder. It is made from the host name when it is first needed.

    Raises:
        StartError: the file cannot be read or written.
    """
    path = data / _NAME_FILE
    try:
        with contextlib.suppress(FileNotFoundError):
            if name := path.read_text().strip():
                return name
        host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower())[:40]
        name = f"{host}-{secrets.token_hex(4)}"
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise StartError(f"the file {path} cannot be used: {error.strerror}") from error
    return name


def recorded_authority(url: StoreUrl) -> str | None:
    """Return the fingerprint of the authority of the cluster in a database; None: the database has no cluster yet.

    Raises:
        StoreError: the database cannot be used, or psycopg is not installed.
    """
    schema.require_library(url)
    schema.prepare(url)
    session = Session(url)
    try:
        until = time.monotonic() + schema.PATIENCE_S
        return session.run(lambda connection: cluster_settings.found(connection, AUTHORITY), until=until)
    finally:
        session.close()
