"""The durable queue of asynchronous events: an accepted event is on the disk, and stays there until it has ended.

Events are delivered at least once. Leases exist only in memory, because only one process uses a state file (the data
folder is locked). A running event is still QUEUED in the table, so after a crash it runs again. In the table each event
is in one of four states:

    QUEUED      waits to run, now (``available_at`` 0) or at a later time
    DELIVERING  has run; its outcome waits to be delivered, and is stored together with it
    DEAD        a dead letter, kept with its error until it is redriven, removed or too old
    REMOVED     a dead letter that was removed, kept for some minutes, so that this can be undone

`thawd.queue.invoker` decides which events are invoked, retried and dead-lettered; this module stores its decisions.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from thawd.errors import TooManyRequestsException
from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events import dead_letters
from thawd.stores.events.batches import Batches
from thawd.stores.events.copies import Copies, placing, withdraw_refused
from thawd.stores.events.event_rows import (
    Depth,
    Event,
    Flow,
    NewEvent,
    count_flow,
    delete,
    delete_of,
    functions_in,
    insert,
    insert_groups,
    kept,
    oldest_of,
    read,
)
from thawd.stores.events.leases import Leases
from thawd.stores.events.running_marks import Marks
from thawd.stores.schema import DEAD, DELIVERING, QUEUED, REMOVED

T = TypeVar("T")

# Nobody waits until a finished event is deleted, so deletions are collected for this time, or until events are
# accepted, and written together. If the process dies before that, these events run again.
_DONE_PATIENCE_S = 0.005
# The smallest `available_at` of an event that waits for a retry, because 0 means that an event never had to wait.
_SMALLEST = 1e-9


class EventQueue:
    """The queue in the state file. Times are seconds since the epoch; the default of ``now`` is the current time.

    Args:
        db: the state file.
        marks: marks the running events, so that an event that crashes the server can be identified.
        max_queued: most events that may be stored, including running ones and those with an undelivered outcome, but
            not dead letters; further events are refused. None: no limit.
        copies: keeps copies of the events that `put` accepts, and of follow-ups; None: there are no copies.

    Attributes:
        copies: see above.
    """

    def __init__(
        self,
        db: Database,
        *,
        marks: Marks | None = None,
        max_queued: int | None = None,
        copies: Copies | None = None,
    ) -> None:
        self._db = db
        self.copies = copies
        self._moved: set[int] = set()
        self._marks = marks
        self._max_queued = max_queued
        db.gauge_from = min(math.inf if one is None else one for one in (db.gauge_from, max_queued))
        self._leases = Leases()
        self._puts = Batches(self._put_all)
        self._dones = Batches(self._done_all, patience_s=_DONE_PATIENCE_S)

    @property
    def full(self) -> bool:
        """Whether the number of stored events, dead letters not counted, has reached `max_queued`."""
        return self._max_queued is not None and self._db.gauged >= self._max_queued

    async def put(self, events: Sequence[NewEvent], *, now: float | None = None) -> list[int]:
        """Accept `events`, all or none; they are durable when this returns. Returns their ids, in the same order.

        Raises:
            StoreError: the events could not be stored.
            TooManyRequestsException: with these events, there would be more than `max_queued` (429).
        """
        if not events:
            return []
        first_id = None
        if not self.full:  # a full queue refuses without a write to the disk
            first_id = await self._puts.add((events, clock.now() if now is None else now))
        if first_id is None:
            raise TooManyRequestsException(
                f"{self._db.gauged} asynchronous events wait, and server.max_queued is {self._max_queued}, so this "
                "request is refused; try again later",
                reason="CallerRateLimitExceeded",
            )
        return [first_id] if len(events) == 1 else list(range(first_id, first_id + len(events)))

    async def _put_all(self, groups: list[tuple[Sequence[NewEvent], float]]) -> list[int | None]:
        """Accept groups of events in this order, except those for which the queue has no room.

        Returns:
            The first id of each group; None for a group that was not accepted.
        """

        def insert(connection: sqlite3.Connection, keys: Sequence[str] | None = None) -> list[int | None]:
            at_most = self._db.gauge_at_most(connection)
            return insert_groups(connection, groups, keys, max_queued=self._max_queued, at_most=at_most)

        self._dones.begin_now()  # the writer commits both together
        if self.copies is None:
            return await self._db.write(insert)
        async with placing(self.copies, [(event, at) for events, at in groups for event in events]) as keys:
            ids = await self._db.write(partial(insert, keys=keys))
            await withdraw_refused(self.copies, keys, groups, ids)
        return ids

    def take(self, event: Event) -> bool:
        """Lease an event that has just been put, without reading its row.

        Returns:
            Whether the event was leased. False when a concurrent call of `lease` has taken it or will perhaps take it;
            that call then returns the event.
        """
        return self._leases.take(event.id, event.function)

    async def lease(self, function: str, *, limit: int, now: float | None = None) -> list[Event]:
        """Lease up to `limit` due events of `function`: retries first, then the others, oldest first.

        If events were given back, only these are returned. If payloads are large, fewer events are returned, but at
        least one if one is due. The time that this takes does not grow with the number of queued events.

        Raises:
            StoreError: the events could not be read.
        """
        leases = self._leases
        events = leases.take_returned(function, limit)
        if events:
            leases.exhausted[function] = False
            return events
        at = clock.now() if now is None else now
        with leases.reading(function):
            return await self._read_due(function, limit, at)

    async def _read_due(self, function: str, limit: int, at: float) -> list[Event]:
        leases = self._leases
        ready_after, held = leases.ready_after.get(function, 0), frozenset(leases.held(function))

        def work(connection: sqlite3.Connection) -> tuple[list[Event], int, bool]:
            rows = connection.execute(
                "SELECT id FROM events WHERE function = ? AND state = ? AND available_at > 0 AND available_at <= ? "
                "ORDER BY available_at, id LIMIT ?",
                (function, QUEUED, at, limit + len(held)),
            )
            waiting = sorted([event_id for (event_id,) in rows if event_id not in held][:limit])
            rows = connection.execute(
                "SELECT id FROM events WHERE function = ? AND state = ? AND available_at = 0 AND id > ? "
                "ORDER BY id LIMIT ?",
                (function, QUEUED, ready_after, limit - len(waiting) + len(held)),
            )
            ready = [event_id for (event_id,) in rows if event_id not in held][: limit - len(waiting)]
            events = read(connection, [*waiting, *ready])
            last = max((event.id for event in events[len(waiting) :]), default=ready_after)
            return events, last, len(waiting) + len(ready) < limit and len(events) == len(waiting) + len(ready)

        events, leases.ready_after[function], leases.exhausted[function] = await self._db.read(work)
        for event in events:
            leases.add(event.id, function)
        return events

    def exhausted(self, function: str) -> bool:
        """Whether the last call of `lease` for this function took all events of the function that were due."""
        return self._leases.exhausted.get(function, False)

    def give_back(self, event: Event) -> None:
        """Undo a lease; the next `lease` returns the event first."""
        self._leases.give_back(event)

    def forget(self, function: str) -> None:
        """Forget a function whose events are no longer leased; events that were given back count as never leased."""
        self._leases.forget(function)

    @property
    def may_run(self) -> bool:
        """Whether leased events may begin to run."""
        return self.copies is None or self.copies.may_run

    def moved(self, ids: Iterable[int]) -> None:
        """Note that another machine has taken these events over. They are no longer in the state file."""
        self._moved.update(event_id for event_id in ids if self._leases.function_of(event_id) is not None)

    def has_moved(self, event: Event) -> bool:
        """Whether another machine has taken a leased event over. If it has, this ends the lease."""
        if event.id not in self._moved:
            return False
        self._moved.discard(event.id)
        self._leases.remove(event.id)
        return True

    def begins(self, event: Event) -> None:
        """Mark the event as running. If the process dies while it runs, `recover` counts an interruption."""
        if self._marks is not None:
            self._marks.set(event.id)

    def ended(self, event: Event) -> None:
        """Remove the mark of an event that no longer runs."""
        if self._marks is not None:
            self._marks.unset(event.id)

    async def done(self, ids: Iterable[int], *, follow_ups: Sequence[NewEvent] = ()) -> None:
        """Delete events that have ended, including dead letters. Unknown ids are ignored.

        Args:
            ids: the events.
            follow_ups: events to accept in the same transaction.

        Raises:
            StoreError: the events could not be deleted; they would run again after a restart.
        """
        keys = list(ids)
        await self._dones.add((keys, follow_ups))
        for event_id in keys:
            self._leases.remove(event_id)

    async def _done_all(self, calls: list[tuple[list[int], Sequence[NewEvent]]]) -> list[None]:
        by_function: dict[str | None, list[int]] = {}
        for ids, _ in calls:
            for event_id in ids:
                by_function.setdefault(self._leases.function_of(event_id), []).append(event_id)
        follow_ups = [event for _, events in calls for event in events]
        now = clock.now()

        def work(connection: sqlite3.Connection) -> None:
            done: Counter[str] = Counter()
            for function, ids in by_function.items():
                done.update(delete(connection, ids) if function is None else delete_of(connection, function, ids))
            count_flow(connection, "done", done.items())
            insert(connection, follow_ups, now=now, keys=keys)

        async with placing(self.copies, [(event, now) for event in follow_ups]) as keys:
            await self._db.write(work)
        if self.copies is not None:
            self.copies.changed()
        return [None] * len(calls)

    async def retry(self, event_id: int, *, at: float, error: str, counts: bool = True) -> None:
        """End the lease of an event and queue it for another attempt at or after `at`.

        Args:
            event_id: the event.
            at: when it is due, seconds since the epoch.
            error: why the attempt failed.
            counts: whether to count this as an attempt; a throttle or a failure of the platform is not counted.

        Raises:
            StoreError: the change could not be stored; the event remains leased.
        """

        def work(connection: sqlite3.Connection) -> None:
            row = connection.execute(
                "UPDATE events SET available_at = ?, attempts = attempts + ?, error = ?, interruptions = 0 "
                "WHERE id = ? AND state = ? RETURNING function",
                (max(at, _SMALLEST), int(counts), kept(error), event_id, QUEUED),
            ).fetchone()
            if row is not None and counts:
                count_flow(connection, "retried", [(row[0], 1)])

        await self._end_lease(event_id, work)

    async def dead_letter(  # noqa: PLR0913 - all belong to one transaction
        self,
        event_id: int,
        *,
        error: str,
        condition: str,
        counts: bool = True,
        outcome: bytes | None = None,
        follow_ups: Sequence[NewEvent] = (),
        now: float | None = None,
    ) -> None:
        """Make an event a dead letter. The event or its outcome must be leased.

        Args:
            event_id: the event.
            error: why the last attempt failed.
            condition: why it becomes a dead letter, for example ``RetriesExhausted`` or ``EventAgeExceeded``.
            counts: whether an attempt was made since the event was leased.
            outcome: replaces the waiting outcome, so that a redrive delivers only this one; None: a redrive runs the
                event again.
            follow_ups: events to accept in the same transaction.
            now: the time, seconds since the epoch.

        Raises:
            StoreError: the change could not be stored; the lease remains.
        """
        at = clock.now() if now is None else now

        def work(connection: sqlite3.Connection) -> bool:
            added = dead_letters.add(connection, event_id, error=error, condition=condition, counts=counts, at=at)
            if added:
                dead_letters.keep_outcome(connection, event_id, outcome)
                insert(connection, follow_ups, now=at, keys=keys)
            return added

        async with placing(self.copies, [(event, at) for event in follow_ups]) as keys:
            if not await self._end_lease(event_id, work):
                await withdraw_refused(self.copies, keys, [(follow_ups, at)], [None])

    async def dead_letter_older(self, function: str, before: float, *, error: str, condition: str) -> int:
        """Make the old events of a function dead letters: those accepted before a time, and not leased.

        Call this only for functions that no longer exist: nothing else leases their events at the same time. One call
        looks at up to 1,000 events.

        Returns:
            How many events became dead letters.

        Raises:
            StoreError: the change could not be stored.
        """
        at, held = clock.now(), frozenset(self._leases.held(function))

        def work(connection: sqlite3.Connection) -> int:
            rows = connection.execute(
                "SELECT id FROM (SELECT id, accepted_at FROM events WHERE function = ? AND state = ? LIMIT 1000) "
                "WHERE accepted_at < ?",
                (function, QUEUED, before),
            )
            ids = [row[0] for row in rows if row[0] not in held]
            return sum(
                dead_letters.add(connection, number, error=error, condition=condition, counts=False, at=at)
                for number in ids
            )

        return await self._db.write(work)

    async def deliver_later(self, event_id: int, document: bytes, *, at: float, error: str, counts: bool) -> None:
        """Store the outcome of a leased event that has run, to be delivered at or after `at`.

        Args:
            event_id: the event.
            document: the outcome with its destination.
            at: when it is due, seconds since the epoch.
            error: why it could not be delivered, or why the event failed.
            counts: whether an attempt was made since the event was leased.

        Raises:
            StoreError: the outcome could not be stored; the event remains leased.
        """
        since = clock.now()

        def work(connection: sqlite3.Connection) -> None:
            changed = connection.execute(
                "UPDATE events SET state = ?, available_at = ?, attempts = attempts + ?, error = ? "
                "WHERE id = ? AND state = ?",
                (DELIVERING, at, int(counts), kept(error), event_id, QUEUED),
            ).rowcount
            if changed:
                connection.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, 0)", (event_id, document, since))

        await self._end_lease(event_id, work)

    async def recover(self, *, longest_wait_s: float = 300.0) -> int:
        """Take over the queue from the previous process. Call this once, before anything else.

        For each event that ran when that process ended, an interruption is counted. An event that is due later than
        `longest_wait_s` seconds from now becomes due now, because the clock must have been set back since that time
        was written.

        Returns:
            How many events ran when the previous process ended.

        Raises:
            StoreError: the change could not be stored.
        """
        ran = self._marks.left_over if self._marks is not None else []
        now = clock.now()

        def work(connection: sqlite3.Connection) -> int:
            interrupted = sum(
                connection.execute(
                    "UPDATE events SET interruptions = interruptions + 1 WHERE id = ? AND state = ?", (number, QUEUED)
                ).rowcount
                for number in set(ran)
            )
            for state in (QUEUED, DELIVERING):
                for function in functions_in(connection, state):
                    connection.execute(
                        "UPDATE events SET available_at = ? WHERE function = ? AND state = ? AND available_at > ?",
                        (now, function, state, now + longest_wait_s),
                    )
            return interrupted

        interrupted = await self._db.write(work)
        if self._marks is not None:
            self._marks.clear()
        return interrupted

    async def depth(self) -> dict[str, Depth]:
        """How many events are in each state, by function. Functions without events are left out.

        The time that this takes depends only on the number of functions.

        Raises:
            StoreError: the numbers could not be read.
        """
        counts: dict[str, dict[int, int]] = {}
        rows = await self._db.read(
            lambda connection: connection.execute("SELECT function, state, count FROM depths").fetchall()
        )
        for function, state, count in rows:
            if count and state != REMOVED:
                counts.setdefault(function, {})[state] = count
        return {function: self._depth_of(function, by_state) for function, by_state in counts.items()}

    def _depth_of(self, function: str, by_state: dict[int, int]) -> Depth:
        queued = by_state.get(QUEUED, 0)
        leased = min(queued, self._leases.count(function))
        return Depth(queued - leased, leased, by_state.get(DEAD, 0), by_state.get(DELIVERING, 0))

    async def flow(self) -> dict[str, Flow]:
        """Counts of events since the state file was created, by function.

        Raises:
            StoreError: the counts could not be read.
        """
        query = "SELECT function, accepted, done, retried, buried FROM flow"
        rows = await self._db.read(lambda connection: connection.execute(query).fetchall())
        return {row[0]: Flow(*row[1:]) for row in rows}

    async def waiting(self) -> list[str]:
        """Names of the functions that have events which wait to run or are running.

        Raises:
            StoreError: the names could not be read.
        """
        return await self._db.read(lambda connection: functions_in(connection, QUEUED))

    async def oldest(self) -> dict[str, float]:
        """When the oldest event that waits or is running was accepted, seconds since the epoch, by function.

        If more than 1,000 events of a function wait for a retry, only the 1,000 that are due first are considered.

        Raises:
            StoreError: the times could not be read.
        """
        return await self._db.read(oldest_of)

    async def next_due(self, function: str, *, now: float | None = None) -> float | None:
        """When the next queued event of `function` can be leased: `now` if one is due, a later time, or None for never.

        Raises:
            StoreError: the times could not be read.
        """
        at = clock.now() if now is None else now
        held = frozenset(self._leases.held(function))
        if self._leases.returned.get(function):
            return at
        ready_after = self._leases.ready_after.get(function, 0)

        def work(connection: sqlite3.Connection) -> float | None:
            ready = connection.execute(
                "SELECT id FROM events WHERE function = ? AND state = ? AND available_at = 0 AND id > ? "
                "ORDER BY id LIMIT ?",
                (function, QUEUED, ready_after, len(held) + 1),
            )
            if any(event_id not in held for (event_id,) in ready):
                return at
            rows = connection.execute(
                "SELECT id, available_at FROM events WHERE function = ? AND state = ? AND available_at > 0 "
                "ORDER BY available_at LIMIT ?",
                (function, QUEUED, len(held) + 1),
            )
            return next((max(row[1], at) for row in rows if row[0] not in held), None)

        return await self._db.read(work)

    async def _end_lease(self, event_id: int, work: Callable[[sqlite3.Connection], T]) -> T:
        result = await self._db.write(work)
        self._leases.remove(event_id)
        if self.copies is not None:
            self.copies.changed()
        return result
