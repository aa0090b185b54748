"""Drains this machine of a cluster: it finishes what it runs, hands its queue over, and is no member any more.

Nothing is dropped: requests that enter here run on other machines until the drain has ended. In the first seconds,
those that no other machine can run, because all others have another version, still run here: ``/_thawd/ready`` already
answers 503, and a load balancer needs a moment to notice. With ``durability = "cluster"``, the others run the events
that wait here. Otherwise nobody else has these events, so this machine runs all of them first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from thawd.errors import ResourceConflictException

if TYPE_CHECKING:
    from thawd.scheduling.dispatcher import Dispatcher
    from thawd.server.assembly.cluster import ClusterSubsystem
    from thawd.server.assembly.events import EventSubsystem
    from thawd.server.assembly.registered import Registered

_INVOCATIONS_S = 1000.0  # longer than any timeout of a function
_PATIENCE_S = 60.0


class Drain:
    """Drains this machine, and lets it come back.

    Args:
        cluster: connections to the other machines.
        registered: this machine in the cluster's database.
        dispatcher: runs requests.
        events: runs events.
        stop: stops the server.
        notice_s: how long load balancers get at least to notice that this machine leaves, seconds.
    """

    def __init__(
        self,
        cluster: ClusterSubsystem,
        registered: Registered,
        dispatcher: Dispatcher,
        *,
        events: EventSubsystem,
        stop: Callable[[], None],
        notice_s: float,
    ) -> None:
        self._cluster = cluster
        self._registered = registered
        self._dispatcher = dispatcher
        self._events = events
        self._stop = stop
        self._notice_s = notice_s
        self._lock = asyncio.Lock()
        self.operations: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
            "drain": self.drain,
            "resume": self.resume,
            "leave": self.leave,
        }

    async def drain(self) -> dict[str, Any]:
        """Drain this machine. Returns when nothing runs here any more and others may run its events.

        Raises:
            ResourceConflictException: no other machine is alive (409).
        """
        async with self._lock:
            if not await self._registered.others():
                raise ResourceConflictException(
                    "no other machine of the cluster is alive, so nobody could take over what this one has; stop it "
                    "instead, and its events wait until it starts again"
                )
            try:
                await self._cluster.announce(self._notice_s)
            except BaseException:
                self._cluster.hand_over(yes=False)  # the caller has gone
                raise
            self._cluster.hand_over(yes=True)
            await asyncio.to_thread(self._registered.may_lead, yes=False)
            handed_over = await self._events.hand_over()
            await self._dispatcher.drain(_INVOCATIONS_S)
            await self._events.settled(_PATIENCE_S)
            await self._registered.leave()
            return {"drained": True, "handed_over": handed_over}

    async def resume(self) -> dict[str, Any]:
        """Be a member again after a drain."""
        async with self._lock:
            self._events.take_back()
            self._registered.come_back()
            self._cluster.hand_over(yes=False)
            return {"drained": False}

    async def leave(self) -> dict[str, Any]:
        """Drain this machine, and stop its server."""
        document = await self.drain()
        self._stop()
        return document
