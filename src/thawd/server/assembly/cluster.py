"""Builds the subsystem that connects this machine to the others of its cluster."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thawd.cluster import handshake
from thawd.cluster.credentials import Credentials as Issuer
from thawd.cluster.forwarding import ClusterDispatcher, Router
from thawd.cluster.links import Credentials, Links
from thawd.cluster.listening import Listener
from thawd.cluster.machine_index import MachineIndex
from thawd.cluster.membership import SILENCE_S, Membership
from thawd.cluster.overview import Known, State
from thawd.cluster.placement import Strategy
from thawd.config import ClusterSettings
from thawd.errors import NotMemberError
from thawd.scheduling.dispatcher import Dispatcher
from thawd.server.port_and_folder_locks import StartError, bind
from thawd.telemetry.console import complain

if TYPE_CHECKING:
    from thawd.server.assembly.registered import Registered

_LEFT_S = 3600.0
_MOST_LEFT = 100
_QUIET_S = 1.0
_NOTICE_S = 10.0
_DRAINED = "this machine is being drained"


@dataclass(frozen=True, slots=True)
class _Left:
    """A machine that has left: its address, connections that are opened when it is asked, and when it left."""

    address: tuple[str, int]
    links: Links
    since_s: float


class ClusterSubsystem:
    """Connections to other machines: their summaries, and requests that are forwarded.

    Args:
        settings: the cluster.
        dispatcher: runs requests on this machine.
        registered: this machine in the database in which machines find each other; None: there is a list of machines.

    Attributes:
        own: name of this machine.
        router: decides where requests run.

    Raises:
        StartError: a certificate cannot be used.
    """

    def __init__(self, settings: ClusterSettings, dispatcher: Dispatcher, registered: Registered | None = None) -> None:
        assert isinstance(dispatcher, ClusterDispatcher)
        self.own = settings.name if registered is None else registered.name
        self._registered = registered
        self._dispatcher = dispatcher
        self._index = MachineIndex(silence_s=SILENCE_S)
        issuer = None if registered is None else registered.issuer
        credentials = credentials_of(settings, self.own, issuer)
        self.router = Router(
            self.own,
            dispatcher,
            self._index,
            key=credentials.key,
            strategy=Strategy(settings.placement),
            zone=settings.zone,
            report=complain,
        )
        self._credentials = credentials
        self._left: dict[str, _Left] = {}
        self._addresses = dict(settings.machines)
        self._own_address: tuple[str, int] = (
            settings.machines[self.own] if registered is None else registered.port.getsockname()[:2]
        )
        others = {name: address for name, address in settings.machines.items() if name != self.own}
        self._listener = Listener(credentials, frozenset(others), self.router, issuer)
        self._membership = Membership(credentials, others, self._index, summarise=self.router.summary, report=complain)
        self.router.links = self._membership.links

    async def open(self) -> None:
        """Accept connections of other machines.

        Raises:
            StartError: the address cannot be used.
        """
        if self._registered is not None:
            await self._listener.start(self._registered.port)
            return
        try:
            port = bind(*self._addresses[self.own])
        except StartError as error:
            raise StartError(
                f"thawd cannot accept connections of the other machines: {error.message}; change "
                f"cluster.machines.{self.own} on all machines if it cannot have this address"
            ) from error
        await self._listener.start(port)

    async def run(self) -> None:
        """Send summaries and signs of life until cancelled. Requests are forwarded from now on."""
        self._dispatcher.forward = self.router.forward
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._membership.run(self._tick))
            if self._registered is not None:
                tasks.create_task(self._registered.follow(self._dispatcher, self._set_machines))

    def _tick(self) -> None:
        self._listener.tick()
        self.router.tick()

    def _set_machines(self, addresses: dict[str, tuple[str, int]]) -> None:
        """Use another list of machines."""
        for name in [name for name, left in self._left.items() if name in addresses or _is_over(left)]:
            self._left.pop(name).links.close()
        for name in self._addresses.keys() - addresses.keys() - {self.own}:
            if len(self._left) < _MOST_LEFT:
                where = self._addresses[name]
                self._left[name] = _Left(where, Links(self._credentials, name, *where), time.monotonic())
        self._addresses = addresses
        others = {name: address for name, address in addresses.items() if name != self.own}
        self._listener.machines = frozenset(others)
        self._membership.set_machines(others)

    def known(self) -> dict[str, Known]:
        """Return the machines of the cluster, and those that have left within the last hour, by name."""
        now_s = time.monotonic()
        left = {name: Known(text_of(left.address), is_alive=False) for name, left in self._left.items()}
        there = {
            name: Known(text_of(address), is_alive=self._index.alive(name, now_s) is not None)
            for name, address in self._addresses.items()
        }
        own = {self.own: Known(text_of(self._own_address), is_alive=True)}
        return left | own | there

    def links_to(self, machine: str) -> Links | None:
        """Return the connections to a machine that `known` returns; None: there is no such machine."""
        left = self._left.get(machine)
        return self._membership.links.get(machine) or (None if left is None else left.links)

    @property
    def state(self) -> State:
        """What this machine does, in one word."""
        if self.why_not_ready is None and not self.router.draining:
            return State.SERVING
        if self._registered is not None and self._registered.member.drained:
            return State.DRAINED
        is_draining = self.router.leaves or self.router.draining
        return State.DRAINING if is_draining else State.CUT_OFF

    @property
    def leads(self) -> bool:
        """Whether this machine is the leader: with a list, whether it is the first one."""
        if self._registered is None:
            return next(iter(self._addresses)) == self.own
        return self._registered.leading() is not None

    @property
    def why_not(self) -> str | None:
        """Why this machine accepts no events, and no requests except for other machines; None: it does."""
        if self.router.leaves and not self.router.still_serves:
            return _DRAINED
        return None if self._registered is None else self._registered.member.why_not

    @property
    def why_not_ready(self) -> str | None:
        """Why load balancers are to send nothing here; None: they may."""
        return _DRAINED if self.router.leaves else self.why_not

    def require_accepting(self) -> None:
        """Check that this machine may accept events.

        Raises:
            NotMemberError: it is cut off from its cluster, or is being drained (503).
        """
        if (why := self.why_not) is not None:
            raise NotMemberError(f"{why}, so it accepts no events; send them to another machine")

    async def announce(self, notice_s: float) -> None:
        """Have requests run on other machines from now on, and give load balancers time to notice.

        Until this returns, requests that no other machine can run still run here.

        Args:
            notice_s: how long at least, seconds. If such requests come, it takes until none has come for `_QUIET_S`, up
                to `_NOTICE_S`.
        """
        self.router.leaves = self.router.still_serves = True
        self._membership.send_summaries()
        begun_s = time.monotonic()
        while (now_s := time.monotonic()) < begun_s + max(notice_s, _NOTICE_S):
            until_s = max(begun_s + max(notice_s, _QUIET_S), self.router.kept_s + _QUIET_S)
            if now_s >= until_s:
                break
            await asyncio.sleep(min(until_s - now_s, _QUIET_S))

    def hand_over(self, *, yes: bool) -> None:
        """Have all requests run on other machines only, or no longer. Those that run here continue."""
        self.router.leaves, self.router.still_serves = yes, False
        self._membership.send_summaries()

    def stop(self) -> None:
        """Take no more requests of other machines, and tell them so."""
        self.router.draining = True
        self._membership.send_summaries()

    def close(self) -> None:
        """End all connections."""
        for left in self._left.values():
            left.links.close()
        self._dispatcher.forward = None
        self._membership.close()
        self._listener.close()

    def describe(self) -> dict[str, Any]:
        """Return the cluster's part of the status document."""
        now_s = time.monotonic()
        machines = {}
        for name, address in self._addresses.items():
            machine = self._index.alive(name, now_s)
            machines[name] = {
                "address": text_of(address),
                "alive": machine is not None,
                "draining": machine is not None and machine.summary.draining,
                "idle": 0 if machine is None else sum(machine.summary.idle.values()),
                "free_environments": 0 if machine is None else machine.summary.free_environments,
                "why": self._membership.unreachable.get(name, ""),
            }
        found = {"name": self.own, "machines": machines, "held": self.router.held, **asdict(self.router.counts)}
        return found if self._registered is None else {**found, **self._registered.describe()}


def text_of(address: tuple[str, int]) -> str:
    """Return host and port as text, as in ``[::1]:8351``."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_over(left: _Left) -> bool:
    return time.monotonic() - left.since_s > _LEFT_S


def credentials_of(settings: ClusterSettings, own: str, issuer: Issuer | None) -> Credentials:
    """Return what a machine needs for connections of the cluster.

    Args:
        settings: the cluster.
        own: name of the machine.
        issuer: its credentials in the data folder; None: thawd.toml has the key.

    Raises:
        StartError: a certificate cannot be used.
    """
    key = settings.key if issuer is None else issuer.key
    if issuer is not None:
        certificate, authority = issuer.files
    elif settings.certificate is None or settings.authority is None:
        return Credentials(own, key)
    else:
        certificate, authority = settings.certificate, settings.authority
    try:
        accepting, opening = handshake.contexts(certificate, authority, lets_join=issuer is not None)
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"the certificates of the cluster cannot be used ({error}); cluster.certificate needs a certificate and "
            "its private key, and cluster.authority a certificate, all in PEM format"
        ) from None
    return Credentials(own, key, accepting, opening)
