"""Builds the subsystem that connects this machine to the others of its cluster."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from thawd.cluster import handshake
from thawd.cluster.credentials import Credentials as Issuer
from thawd.cluster.forwarding import ClusterDispatcher, Router
from thawd.cluster.links import Credentials
from thawd.cluster.listening import Listener
from thawd.cluster.machine_index import MachineIndex
from thawd.cluster.membership import SILENCE_S, Membership
from thawd.cluster.placement import Strategy
from thawd.config import ClusterSettings
from thawd.errors import NotMemberError
from thawd.scheduling.dispatcher import Dispatcher
from thawd.server.port_and_folder_locks import StartError, bind
from thawd.telemetry.console import complain

if TYPE_CHECKING:
    from thawd.server.assembly.registered import Registered


class ClusterSubsystem:
    """Connections to other machines: their summaries, and requests that are forwarded.

    Args:
        settings: the cluster.
        dispatcher: runs requests on this machine.
        registered: this machine in the database in which machines find each other; None: there is a list of machines.

    Raises:
        StartError: a certificate cannot be used.
    """

    def __init__(self, settings: ClusterSettings, dispatcher: Dispatcher, registered: Registered | None = None) -> None:
        assert isinstance(dispatcher, ClusterDispatcher)
        self._own = settings.name if registered is None else registered.name
        self._registered = registered
        self._dispatcher = dispatcher
        self._index = MachineIndex(silence_s=SILENCE_S)
        issuer = None if registered is None else registered.issuer
        credentials = _credentials(settings, self._own, issuer)
        self.router = Router(
            self._own,
            dispatcher,
            self._index,
            key=credentials.key,
            strategy=Strategy(settings.placement),
            zone=settings.zone,
            report=complain,
        )
        self._addresses = dict(settings.machines)
        others = {name: address for name, address in settings.machines.items() if name != self._own}
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
            port = bind(*self._addresses[self._own])
        except StartError as error:
            raise StartError(
                f"thawd cannot accept connections of the other machines: {error.message}; change "
                f"cluster.machines.{self._own} on all machines if it cannot have this address"
            ) from error
        await self._listener.start(port)

    async def run(self) -> None:
        """Send summaries and signs of life until cancelled. Requests are forwarded from now on."""
        self._dispatcher.forward = self.router.forward
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._membership.run(self._listener.tick))
            if self._registered is not None:
                tasks.create_task(self._registered.follow(self._dispatcher, self._set_machines))

    def _set_machines(self, addresses: dict[str, tuple[str, int]]) -> None:
        """Use another list of machines."""
        self._addresses = addresses
        others = {name: address for name, address in addresses.items() if name != self._own}
        self._listener.machines = frozenset(others)
        self._membership.set_machines(others)

    @property
    def why_not(self) -> str | None:
        """Why this machine accepts no events, and no requests except for other machines; None: it does."""
        if self.router.refuses_new:
            return "this machine is being drained"
        return None if self._registered is None else self._registered.member.why_not

    def require_accepting(self) -> None:
        """Check that this machine may accept events.

        Raises:
            NotMemberError: it is cut off from its cluster, or is being drained (503).
        """
        if (why := self.why_not) is not None:
            raise NotMemberError(f"{why}, so it accepts no events; send them to another machine")

    def hand_over(self, *, yes: bool) -> None:
        """Have all requests run on other machines, or no longer. Those that run here continue."""
        self.router.refuses_new = yes
        self._membership.send_summaries()

    def stop(self) -> None:
        """Take no more requests of other machines, and tell them so."""
        self.router.draining = True
        self._membership.send_summaries()

    def close(self) -> None:
        """End all connections."""
        self._dispatcher.forward = None
        self._membership.close()
        self._listener.close()

    def describe(self) -> dict[str, Any]:
        """Return the cluster's part of the status document."""
        now_s = time.monotonic()
        machines = {}
        for name, (host, port) in self._addresses.items():
            machine = self._index.alive(name, now_s)
            machines[name] = {
                "address": f"{host}:{port}",
                "alive": machine is not None,
                "draining": machine is not None and machine.summary.draining,
                "idle": 0 if machine is None else sum(machine.summary.idle.values()),
                "free_environments": 0 if machine is None else machine.summary.free_environments,
            }
        found = {"name": self._own, "machines": machines, **asdict(self.router.counts)}
        return found if self._registered is None else {**found, **self._registered.describe()}


def _credentials(settings: ClusterSettings, own: str, issuer: Issuer | None) -> Credentials:
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
