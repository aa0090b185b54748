"""This machine among those that find each other in the cluster's database: who is there, and who may use what.

Several times a second it reads which machines hold their leases, and exchanges its shares of concurrency limits. Only
the leases decide who belongs to the cluster. The summaries that machines send each other are hints for placement.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from thawd.cluster.credentials import Credentials
from thawd.cluster.forwarding import ClusterDispatcher
from thawd.cluster.limits import Member
from thawd.cluster.shares import fair_share, split
from thawd.errors import ResourceNotFoundException, StoreError
from thawd.resources import LATEST
from thawd.server.assembly.cluster_state import ClusterState
from thawd.stores.cluster import concurrency, machines, schema
from thawd.stores.cluster.concurrency import Claim, Identified, Share
from thawd.stores.cluster.leader_state import LEADER
from thawd.stores.cluster.leases import Lease
from thawd.stores.cluster.machines import Machine
from thawd.system.retry import SayOnce, is_set_within
from thawd.telemetry.console import complain, say

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

_EXCHANGE_S = 0.3
_SOON_S = 0.05
_PATIENCE_S = 2.0
_FORGET_S = 3600.0


class Registered:
    """This machine in the cluster's database.

    Args:
        state: its lease and its connections to the database.
        port: the socket at which it accepts connections of others.
        issuer: its credentials, with which it lets others join; None: thawd.toml has the key.

    Attributes:
        name: its name.
        port: the socket.
        member: what it may do.
    """

    def __init__(self, state: ClusterState, port: socket.socket, issuer: Credentials | None) -> None:
        self.issuer = issuer
        self.name = state.machine.name
        self.port = port
        self.member = Member(self.name, lambda: state.leases.membership)
        self._state = state
        self._reports = SayOnce(complain)
        self._had_claims = False
        self._forget_s = 0.0  # when old rows are removed next, ``time.monotonic()`` seconds
        self._numbers = itertools.count(1)
        self._provisioned: dict[str, int] = {}
        self._living: list[Machine] = []
        self._begun, self._done = 0, 0  # numbers of the exchanges that began last and that succeeded last
        self._ended = asyncio.Event()  # set when the exchange that is under way ends, and replaced then
        self._note_leader: Callable[[Lease | None], None] | None = None

    async def follow(
        self, dispatcher: ClusterDispatcher, set_machines: Callable[[dict[str, tuple[str, int]]], None]
    ) -> None:
        """Follow the cluster's database until cancelled.

        Args:
            dispatcher: runs requests here.
            set_machines: called with host and port of each machine, this one included.
        """
        while True:
            self.member.wake.clear()
            lease = self._state.leases.membership
            if lease is not None:
                self._begun += 1
                try:
                    await self._exchange(dispatcher, lease)
                    self._done = self._begun
                except StoreError as error:
                    self._reports.say(f"thawd: the cluster's database cannot be read: {error.message}")
                else:
                    self._reports.resolved("thawd: the cluster's database can be read again")
                    set_machines({each.name: where for each in self._living if (where := address_of(each)) is not None})
                    self._provision(dispatcher)
                    await self._forget_old()
                ended, self._ended = self._ended, asyncio.Event()
                ended.set()
            await asyncio.sleep(_SOON_S)
            await is_set_within(self.member.wake, _EXCHANGE_S - _SOON_S)

    async def _exchange(self, dispatcher: ClusterDispatcher, lease: Lease) -> None:
        claims = self.member.claims(dispatcher.families(), lease)
        machine = Identified(self.name, lease, self._numbers)
        work = partial(_turn, machine=machine, claims=claims if claims or self._had_claims else None)
        self._living, rows = await self._state.database.run(work, patience_s=_PATIENCE_S)
        self._had_claims = bool(claims)
        self.member.got(rows, lease)

    async def _forget_old(self) -> None:
        """Remove old rows of the database about once an hour: a cluster may run for years."""
        if time.monotonic() < self._forget_s:
            return
        self._forget_s = time.monotonic() + _FORGET_S
        with contextlib.suppress(StoreError):
            await self._state.database.run(schema.forget_old, patience_s=_PATIENCE_S)

    def _provision(self, dispatcher: ClusterDispatcher) -> None:
        """Keep this machine's part of the provisioned environments initialised."""
        names = {each.name for each in self._living}
        for family in dispatcher.families():
            function = family.latest.function
            if not function.provisioned_concurrency and function.name not in self._provisioned:
                continue
            count = split(function.provisioned_concurrency, names | {self.name})[self.name]
            if self._provisioned.get(function.name) != count:
                self._provisioned[function.name] = count
                try:
                    dispatcher.provision(function.name, LATEST, count)
                except ResourceNotFoundException:
                    del self._provisioned[function.name]

    async def others(self) -> list[str]:
        """Return the names of the other machines that are alive: as the database says now, if it answers."""
        wanted, until_s = self._begun + 1, time.monotonic() + _PATIENCE_S
        while self._done < wanted and (left_s := until_s - time.monotonic()) > 0:
            self.member.wake.set()
            await is_set_within(self._ended, left_s)
        return [each.name for each in self._living if each.name != self.name]

    def leading(self) -> Lease | None:
        """The leader's lease, if this machine holds it at this moment."""
        return self._state.leases.lease(LEADER)

    async def lead(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `work` whenever this machine is the leader of the cluster, until cancelled.

        Args:
            work: runs until it is cancelled, and acts only while `leading` returns the same lease.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def note(lease: Lease | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        self._note_leader = note
        try:
            self.may_lead(yes=True)
            while True:
                changed.clear()
                if (lease := self.leading()) is None:
                    await changed.wait()
                else:
                    say("this machine leads the cluster: schedules, queues and streams are read here")
                    await self._while_held(lease, work, changed)
        finally:
            await asyncio.to_thread(self.may_lead, yes=False)

    def may_lead(self, *, yes: bool) -> None:
        """Lead the cluster whenever nobody else does, or no longer. Blocks for a moment if this machine leads."""
        if not yes:
            self._state.leases.give_up(LEADER)
        elif self._note_leader is not None:
            self._state.leases.want(LEADER, on_gained=self._note_leader, on_lost=self._note_leader)
        if self._note_leader is not None:
            self._note_leader(None)

    async def leave(self) -> None:
        """Give up this machine's shares and its lease, after its last invocation has ended, until `come_back`."""
        self.member.drained = "this machine was drained"
        await asyncio.to_thread(self._state.retire)

    def come_back(self) -> None:
        """Be a member again."""
        self.member.drained = ""
        self._state.leases.resume()
        self.may_lead(yes=True)

    async def _while_held(
        self, lease: Lease, work: Callable[[], Coroutine[None, None, None]], changed: asyncio.Event
    ) -> None:
        task = asyncio.get_running_loop().create_task(work())
        task.add_done_callback(lambda _: changed.set())
        try:
            while self.leading() is lease and not task.done():
                changed.clear()
                await is_set_within(changed, lease.left_s)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        say("another machine leads the cluster from now on")

    def describe(self) -> dict[str, Any]:
        """Return what the status document says beside what machines with a list say."""
        return {
            "member": self.member.why_not is None,
            "why_not": self.member.why_not,
            "leads": self.leading() is not None,
            "shares": self.member.shares,
            "versions": {each.name: machines.about(each.summary).thawd for each in self._living},
            "upgrade_waits_for": self._state.waits_for,
        }


def address_of(machine: Machine) -> tuple[str, int] | None:
    """Host and port at which a machine accepts connections of others; None: it does not run requests of others."""
    host, _, port = machine.address.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() and "/" not in host else None


def _turn(
    connection: PatientConnection, machine: Identified, claims: Mapping[str, Claim] | None
) -> tuple[list[Machine], Mapping[str, list[Share]]]:
    rows = {} if claims is None else concurrency.exchange(connection, machine, claims, fair=fair_share)
    return machines.living(connection), rows
