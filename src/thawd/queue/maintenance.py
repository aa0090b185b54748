"""Maintains the queue while the server runs: deletes old dead letters, shrinks the state file, counts events.

Each minute, if over half of the state file and over 16 MiB of it are unused, 16 MiB are returned to the file system.
This module also makes old events of functions that no longer exist dead letters. It never leases or runs an event:
`thawd.queue.invoker` does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from thawd.errors import StoreError
from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, Flow
from thawd.stores.events.removals import Removals
from thawd.system.retry import SayOnce

_SAMPLE_S = 5.0
_RATE_WINDOW_S = 60.0
_SWEEP_S = 60.0
# Events of functions that do not exist become dead letters at this age. Source: Lambda developer guide, "Asynchronous
# invocation": the longest time that an event is kept.
_ORPHANS_AFTER_S = 21_600.0


class Upkeep:
    """Deletes old dead letters and measures the queue.

    Args:
        state: the state file.
        queue: the events in the state file.
        dead_letters: the dead letters in the state file.
        names: returns the names of all functions that exist.
        retention_s: how long a dead letter is kept, seconds.
        report: takes a line for the operator.

    Attributes:
        running: returns how many events of a function have an environment.
    """

    def __init__(
        self,
        state: Database,
        queue: EventQueue,
        dead_letters: DeadLetters,
        *,
        names: Callable[[], Iterable[str]],
        retention_s: float,
        report: Callable[[str], None],
    ) -> None:
        self._state = state
        self._queue = queue
        self._dead_letters = dead_letters
        self._removals = Removals(state)
        self._names = names
        self._retention_s = retention_s
        self._reports = SayOnce(report)
        self.running: Callable[[str], int] = lambda _: 0
        self._stopping = False
        self._samples: deque[tuple[float, dict[str, Flow]]] = deque()

    def stop(self) -> None:
        """Dead-letter no more events, because functions that disappear while the server stops are not deleted."""
        self._stopping = True

    async def run(self) -> None:
        """Measure the queue every few seconds, and call `sweep` every minute, until cancelled."""
        swept_s = 0.0
        while True:
            try:
                await self._sample()
                if time.monotonic() - swept_s >= _SWEEP_S:
                    swept_s = time.monotonic()
                    await self.sweep()
                self._reports.resolved()
            except StoreError as error:
                self._reports.say(f"thawd: the queue cannot be maintained: {error.message}")
            await asyncio.sleep(_SAMPLE_S)

    async def sweep(self) -> None:
        """Delete dead letters that are old or were removed, dead-letter events of deleted functions, return disk space.

        Raises:
            StoreError: the state file cannot be used.
        """
        while await self._dead_letters.remove_older(clock.now() - self._retention_s):
            continue
        await self._removals.purge()
        known = set(self._names())
        for name, depth in (await self._queue.depth()).items():
            if depth.queued and name not in known and not self._stopping:
                await self._dead_letter_orphans(name)
        await self._state.give_space_back()

    async def _dead_letter_orphans(self, name: str) -> None:
        count = await self._queue.dead_letter_older(
            name,
            clock.now() - _ORPHANS_AFTER_S,
            error=f"there is no function {name}",
            condition="ResourceNotFound",
        )
        if count:
            became = f"1 event of {name} is now a dead letter"
            if count > 1:
                became = f"{count} events of {name} are now dead letters"
            self._reports.report(f"thawd: {became}: there is no function with that name any more")

    async def _sample(self) -> dict[str, Flow]:
        flow = await self._queue.flow()
        now_s = time.monotonic()
        # If `overview` calls this shortly after the last sample, no further sample is kept.
        if not self._samples or now_s - self._samples[-1][0] >= _SAMPLE_S / 2:
            self._samples.append((now_s, flow))
        while now_s - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()
        return flow

    async def overview(self) -> dict[str, dict[str, Any]]:
        """Return the figures of the queue, by function.

        Returns:
            For each function that has or had events: ``queued`` (waiting to run, perhaps for an environment),
            ``running`` (in an environment), ``delivering`` (outcomes that wait for their destination), ``dead`` (dead
            letters), ``oldest_age_s`` (age of the oldest queued event; None: no event is queued), ``accepted_per_s``
            and ``done_per_s`` over the last minute, and the totals since the state file was created: ``accepted``,
            ``done``, ``retried``, ``buried`` (dead-lettered).

        Raises:
            StoreError: the state file cannot be read.
        """
        flow, depths, oldest = await self._sample(), await self._queue.depth(), await self._queue.oldest()
        since_s, before = self._samples[0]
        span_s = max(time.monotonic() - since_s, 1.0)
        now = clock.now()
        view = {}
        for name in sorted({*flow, *depths}):
            total, depth = flow.get(name, Flow()), depths.get(name, Depth(0, 0, 0, 0))
            running = min(depth.leased, self.running(name))
            earlier = before.get(name, Flow())
            view[name] = {
                "queued": depth.queued + depth.leased - running,
                "running": running,
                "delivering": depth.delivering,
                "dead": depth.dead,
                "oldest_age_s": round(max(0.0, now - oldest[name]), 3) if name in oldest else None,
                "accepted_per_s": round((total.accepted - earlier.accepted) / span_s, 3),
                "done_per_s": round((total.done - earlier.done) / span_s, 3),
                "accepted": total.accepted,
                "done": total.done,
                "retried": total.retried,
                "buried": total.buried,
            }
        return view
