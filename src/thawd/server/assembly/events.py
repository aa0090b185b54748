"""Builds the subsystem for asynchronous events: queue, invoker (runs them), delivery of outcomes, maintenance."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thawd.config.settings import ServerSettings
from thawd.destinations.delivery import Destinations
from thawd.queue.invoker import AsyncInvoker
from thawd.queue.maintenance import Upkeep
from thawd.queue.operator_view import OperatorView
from thawd.queue.outcome_delivery import Outcomes
from thawd.queue.retry_waits import LONGEST_WAIT_S
from thawd.scheduling.dispatcher import Dispatcher
from thawd.stores.database import Database
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.outbox import Outbox
from thawd.stores.events.removals import Removals
from thawd.stores.events.running_marks import Marks
from thawd.telemetry.console import complain, say
from thawd.telemetry.metrics import EVENT_COUNTERS, EVENT_GAUGES, Metrics

if TYPE_CHECKING:
    from thawd.stores.cluster.copier import EventCopier

_LOOK_S = 0.1


class EventSubsystem:
    """Stores, runs and delivers the asynchronous events of one server.

    Args:
        state: the state file.
        server: the server's settings.
        dispatcher: runs events.
        destinations: deliver the outcomes of events.
        copier: keeps copies of the events; None: there are no copies.
        closing: closes open resources when the server ends.

    Attributes:
        queue: the stored events.
        invoker: runs events.
        operator_view: lists events and dead letters for operators, and changes dead letters.

    Raises:
        StoreError: a file cannot be used.
    """

    def __init__(
        self,
        state: Database,
        server: ServerSettings,
        *,
        dispatcher: Dispatcher,
        destinations: Destinations,
        copier: EventCopier | None = None,
        closing: contextlib.ExitStack,
    ) -> None:
        marks = Marks(Path(server.data) / "running")
        closing.callback(marks.close)
        self.queue = EventQueue(state, marks=marks, max_queued=server.max_queued, copies=copier)
        self._copier = copier
        self._retry_wait_s = server.retry_wait_s
        self._destinations = destinations
        self._outcomes = Outcomes(self.queue, Outbox(state), destinations)
        self.invoker = AsyncInvoker(
            self.queue, dispatcher, destinations, self._outcomes, retry_wait_s=server.retry_wait_s
        )
        if copier is not None:
            copier.on_joined = self.invoker.resume
            copier.on_events = self._wake
            copier.on_moved = self.queue.moved
        dead_letters = DeadLetters(state)
        self._names = dispatcher.names
        self._upkeep = Upkeep(
            state,
            self.queue,
            dead_letters,
            names=dispatcher.names,
            retention_s=server.dead_letter_retention_s,
            report=complain,
        )
        self._upkeep.running = self.invoker.running
        self.operator_view = OperatorView(dead_letters, Removals(state), self._upkeep, wake=self._wake)

    async def recover(self) -> None:
        """Queue again the events that were running when the previous server ended. Call it before any function runs.

        Raises:
            StoreError: the state file cannot be used.
        """
        recovered = await self.queue.recover(longest_wait_s=max(LONGEST_WAIT_S, 2 * self._retry_wait_s))
        if recovered:
            say(f"{recovered} asynchronous events were running when thawd last ended; they run again")

    def works(self, started: asyncio.Event) -> tuple[Coroutine[None, None, None], ...]:
        """The subsystem's background work. The invoker sets `started` once `AsyncInvoker.declare` can be called."""
        works = (self.invoker.run(started), self._upkeep.run())
        return works if self._copier is None else (*works, self._copier.run())

    def is_full(self) -> bool:
        """Whether `server.max_queued` events wait, so that the queue accepts no more."""
        return self.queue.full

    def _wake(self, functions: set[str]) -> None:
        self.invoker.wake(functions)
        self._outcomes.wake()

    async def hand_over(self) -> int:
        """Start no further events if other machines can run them; else wait until no event is left.

        Returns:
            How many events others are to run.

        Raises:
            StoreError: the state file cannot be read.
        """
        if self._copier is not None:
            self._copier.hands_over = True
            return sum(depth.queued for depth in (await self.queue.depth()).values())
        while any(one.queued or one.leased or one.delivering for one in (await self.queue.depth()).values()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return 0

    def take_back(self) -> None:
        """Start events again after `hand_over`."""
        if self._copier is not None:
            self._copier.hands_over = False
            self.invoker.resume()

    def stop(self) -> None:
        """Start no further events. Events that already run continue."""
        self.invoker.stop()
        self._upkeep.stop()

    async def settled(self, patience_s: float) -> None:
        """Wait until the outcomes of all events that ran are stored, at most `patience_s` seconds."""
        await self.invoker.settled(patience_s)
        if self._copier is not None:
            await self._copier.settled(patience_s)

    def break_off(self) -> None:
        """Abort the running deliveries. Their outcomes stay stored and are delivered after the next start."""
        self._outcomes.break_off()

    async def close(self) -> None:
        """Close connections to destinations."""
        await self._destinations.close()

    async def add_status(self, functions: dict[str, dict[str, Any]]) -> None:
        """Add the counts of events to the status of each function.

        Raises:
            StoreError: the state file cannot be read.
        """
        depths = await self.queue.depth()
        for name, entry in functions.items():
            depth = depths.get(name)
            entry["queued"] = depth.queued if depth else 0
            entry["leased"] = depth.leased if depth else 0
            entry["delivering"] = depth.delivering if depth else 0
            entry["dead"] = depth.dead if depth else 0

    async def measure(self, metrics: Metrics) -> None:
        """Copy the counts of events, by function, into `metrics`.

        Raises:
            StoreError: the state file cannot be read.
        """
        # All functions have these metrics from the start, so that the first event counts as an increase.
        none = dict.fromkeys([*EVENT_GAUGES, *EVENT_COUNTERS], 0.0)
        metrics.events = dict.fromkeys(self._names(), none) | {
            name: {
                "queued": entry["queued"],
                "events_running": entry["running"],
                "outcomes_waiting": entry["delivering"],
                "dead_letters": entry["dead"],
                "oldest_event_age_seconds": entry["oldest_age_s"] or 0.0,
                "events_accepted": entry["accepted"],
                "events_done": entry["done"],
                "events_retried": entry["retried"],
                "events_given_up": entry["buried"],
            }
            for name, entry in (await self._upkeep.overview()).items()
        }
