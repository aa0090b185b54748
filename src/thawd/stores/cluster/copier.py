"""Keeps copies of this machine's events in the cluster's database, and takes the events of dead machines over.

The `EventCopier` is what an `EventQueue` with ``durability = "cluster"`` needs. Its task `run` does one thing after the
other, so that no two of them disturb each other:

1. When this machine has become a member of the cluster, at the start or after it was cut off, it forgets the events
   that others have taken over meanwhile, adopts those whose copies it owns but whose events it does not have, and
   copies those that have no copy. Until then, no event begins to run here.
2. The copies follow the changes of their events.
3. After a connection was opened again, it copies the events that have no copy: another server with the last state of
   the database that it knew has perhaps taken the place of the one before.
4. About once a second, it takes over events of dead machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from thawd.errors import LeaseLostError, StoreError, UnknownOutcomeError
from thawd.stores import clock
from thawd.stores.cluster import event_copies
from thawd.stores.cluster.access import ClusterDatabase
from thawd.stores.cluster.leases import Lease
from thawd.stores.database import Database
from thawd.stores.events import copied_events
from thawd.stores.events.event_rows import NewEvent
from thawd.system.retry import SayOnce, is_set_within

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

PATIENCE_S = 5.0
"""How long an event waits for the cluster's database before it is refused, seconds."""
# How many changes, keys or events one transaction handles.
_CHANGES, _KEYS, _EVENTS = 2000, 1000, 100
# Copies of more than this are stored by several statements.
_PLACED_BYTES = 8 * 1024 * 1024
_LOOK_S = 1.0
_NOT_MEMBER_LOOK_S = 0.1
_RETRY_S = 0.5
# Changes are collected for this time, because nobody waits for the copies.
_COLLECT_S = 0.01


class EventCopier:
    """A `thawd.stores.events.copies.Copies`.

    Args:
        state: the state file of this machine.
        cluster: the cluster's database.
        machine: this machine's name.
        membership: returns this machine's lease, if it holds it at this moment.
        report: gets a line for the operator.

    Attributes:
        on_joined: called when events may run again; set before `run`.
        on_events: gets the functions for which there are new events; set before `run`.
        on_moved: gets the ids of events that are no longer in the state file; set before `run`.
        hands_over: whether no further event may begin here, because others are to run them.
    """

    def __init__(
        self,
        state: Database,
        cluster: ClusterDatabase,
        *,
        machine: str,
        membership: Callable[[], Lease | None],
        report: Callable[[str], object],
    ) -> None:
        self._state = state
        self._cluster = cluster
        self._machine = machine
        self._membership = membership
        self._reports = SayOnce(report)
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count()
        self._in_use: set[str] = set()  # keys of copies whose events are being stored
        self._joined = 0  # token of the lease with which this machine has joined last
        self._must_adopt = False  # whether there may be copies of this machine without events
        self._checked = 0  # connections that had been opened when it was last checked that all events have copies
        self._changed = asyncio.Event()
        self.hands_over = False
        self.on_joined: Callable[[], object] = lambda: None
        self.on_events: Callable[[set[str]], object] = lambda functions: None
        self.on_moved: Callable[[Iterable[int]], object] = lambda ids: None

    @property
    def may_run(self) -> bool:
        """Whether this machine is a member, and has forgotten what others have taken over."""
        lease = self._membership()
        return lease is not None and lease.token == self._joined and not self.hands_over

    async def place(self, events: Sequence[tuple[NewEvent, float]]) -> list[str]:
        """Store copies of events; returns their keys. See `Copies.place`.

        Raises:
            LeaseLostError: this machine is cut off from the cluster; nothing was stored.
            UnknownOutcomeError: it is unknown whether the copies were stored, and so, whether the events will run.
            StoreError: the copies could not be stored.
        """
        lease = self._membership()
        if lease is None:
            raise LeaseLostError(
                "this machine is cut off from its cluster, so it accepts no events; send them to another machine"
            )
        keys = [f"{self._prefix}{next(self._numbers):012x}" for _ in events]
        rows = [event_copies.encoded(event, at) for event, at in events]
        self._in_use.update(keys)
        stored = 0
        try:
            for first, last in _parts(rows):
                await self._cluster.run(
                    partial(
                        event_copies.place,
                        keys=keys[first:last],
                        events=rows[first:last],
                        owner=self._machine,
                        lease=lease,
                    ),
                    patience_s=PATIENCE_S,
                )
                stored = last
        except BaseException as error:
            # Without a lease, nothing of the last part was stored, but the parts before it were.
            await self._give_up(keys, keys[:stored] if isinstance(error, LeaseLostError) else keys)
            raise
        return keys

    async def place_with(self, work: Callable[[PatientConnection], bool], events: Sequence[NewEvent]) -> bool:
        """Accept events in one transaction with `work`, if it returns true.

        Args:
            work: changes the cluster's database; it is repeated after a conflict.
            events: the events.

        Returns:
            What `work` has returned.

        Raises:
            UnknownOutcomeError: it is unknown whether the transaction happened. If so, the events will run.
            StoreError: nothing was changed.
        """
        lease, now = self._membership(), clock.now()
        if lease is None:
            raise LeaseLostError("this machine is cut off from its cluster, so it accepts no events")
        keys = [f"{self._prefix}{next(self._numbers):012x}" for _ in events]
        rows = [event_copies.encoded(event, now) for event in events]

        def transaction(connection: PatientConnection) -> bool:
            done = work(connection)
            if done and keys:
                event_copies.place(connection, keys, rows, owner=self._machine, lease=lease)
            return done

        try:
            done = await self._cluster.transact(transaction, patience_s=PATIENCE_S)
            if done and keys:
                await self._adopt(keys)
        except BaseException:
            self._must_adopt = True
            raise
        return done

    async def _give_up(self, keys: Sequence[str], doubtful: Sequence[str]) -> None:
        """After `place` has failed, remove what it has stored or perhaps stored."""
        try:
            if doubtful:
                await self.withdraw(doubtful)
                # The server may still work on the statement that was not answered.
                self._must_adopt = True
        finally:
            self.placed(keys)

    def placed(self, keys: Sequence[str]) -> None:
        """The events of these copies are stored, or were withdrawn."""
        self._in_use.difference_update(keys)

    async def withdraw(self, keys: Sequence[str]) -> None:
        """Remove copies. See `Copies.withdraw`.

        Raises:
            UnknownOutcomeError: they could not be removed.
        """
        try:
            await self._cluster.run(
                partial(event_copies.withdraw, keys=keys, owner=self._machine), patience_s=PATIENCE_S
            )
        except StoreError as error:
            self._must_adopt = True
            raise UnknownOutcomeError(
                "the copy of an event could not be removed from the cluster's database, so it is unknown whether the "
                f"event will run ({error.message})"
            ) from None

    async def note_run(self, event_id: int, *, runs: bool) -> None:
        """Have the copy of an event say whether it runs. See `Copies.note_run`.

        Raises:
            StoreError: the copy could not be changed.
        """
        found = await self._state.read(partial(copied_events.progress_of, event_id=event_id))
        if found is None:
            return
        key, progress = found
        if runs:
            progress = msgspec.structs.replace(progress, interruptions=progress.interruptions + 1)
        follow = partial(event_copies.follow, ended=(), changed=[(key, progress)], owner=self._machine)
        await self._cluster.run(follow, patience_s=PATIENCE_S)

    def changed(self) -> None:
        """Wake the task, because events have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Do the copier's work until the task is cancelled."""
        look_at = 0.0
        while True:
            pause_s = _LOOK_S
            self._changed.clear()
            lease = self._membership()
            try:
                if lease is None:
                    pause_s = _NOT_MEMBER_LOOK_S
                elif lease.token != self._joined:
                    await self._join(lease)
                else:
                    if self._must_adopt:
                        await self._adopt_all()
                    await self._follow()
                    if self._cluster.opened != self._checked:
                        await self._copy_missing(lease)
                    if time.monotonic() >= look_at:
                        look_at = time.monotonic() + _LOOK_S
                        await self._take_over(lease)
                self._reports.resolved("thawd: the copies of events in the cluster's database are kept again")
            except StoreError as error:
                self._reports.say(
                    f"thawd: the copies of events in the cluster's database are not up to date: {error.message}",
                    cause=type(error).__name__,
                )
                pause_s = _RETRY_S
            await is_set_within(self._changed, pause_s)
            await asyncio.sleep(_COLLECT_S)

    async def settled(self, patience_s: float) -> None:
        """Wait until the copies have followed all changes, at most `patience_s` seconds."""
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(patience_s):
                while await self._state.read(partial(copied_events.changes, limit=1)):
                    self.changed()
                    await asyncio.sleep(_COLLECT_S)

    async def _join(self, lease: Lease) -> None:
        await self._forget_moved()
        await self._adopt_all()
        await self._copy_missing(lease)
        await self._follow()  # later, it would overwrite what `note_run` has written
        self._joined = lease.token
        self.on_joined()

    async def _forget_moved(self) -> None:
        """Remove events that others have taken over."""
        moved = partial(event_copies.moved_away, owner=self._machine, limit=_KEYS)
        while keys := await self._cluster.run(moved):
            self.on_moved(await self._state.write(partial(copied_events.remove_moved, keys=keys)))
            await self._cluster.run(partial(event_copies.forget_moves, owner=self._machine, keys=keys))

    async def _adopt_all(self) -> None:
        """Add the events of all copies that this machine owns, if the state file does not have them."""
        self._must_adopt = False
        owned = partial(event_copies.owned, owner=self._machine, limit=_KEYS)
        after = ""
        try:
            while keys := await self._cluster.run(partial(owned, after=after)):
                await self._adopt(keys)
                after = keys[-1]
        except BaseException:
            self._must_adopt = True
            raise

    async def _adopt(self, keys: Sequence[str]) -> None:
        """Add the events of these copies, if the state file does not have them."""
        # The set is read before the state file: a copy that leaves the set in between is in the file.
        unused = [key for key in keys if key not in self._in_use]
        wanted = await self._state.read(partial(copied_events.missing, keys=unused))
        for first in range(0, len(wanted), _EVENTS):
            part = wanted[first : first + _EVENTS]
            copies = await self._cluster.run(partial(event_copies.read, keys=part, owner=self._machine))
            self.on_events(await self._state.write(partial(copied_events.add, copies=copies)))

    async def _copy_missing(self, lease: Lease) -> None:
        """Copy the events again whose copies the database has lost, for example because it was restored."""
        opened, in_use = self._cluster.opened, set(self._in_use)
        while in_use & self._in_use:  # noqa: ASYNC110 - of these, the state file perhaps does not have the events yet
            await asyncio.sleep(_COLLECT_S)
        after = ""
        while found := await self._state.read(partial(copied_events.copied, after=after, limit=_EVENTS)):
            keys = [key for key, _, _ in found]
            there = await self._cluster.run(partial(event_copies.existing, keys=keys))
            lost = [one for one in found if one[0] not in there]
            if lost:
                await self._copy_again(lost, lease)
            after = keys[-1]
        self._checked = opened

    async def _copy_again(self, lost: Sequence[tuple[str, NewEvent, copied_events.Progress]], lease: Lease) -> None:
        keys = [key for key, _, _ in lost]
        rows = [event_copies.encoded(event, progress.accepted_at) for _, event, progress in lost]
        progress = [(key, progress) for key, _, progress in lost]
        place = partial(event_copies.place, keys=keys, events=rows, owner=self._machine, lease=lease)
        await self._cluster.run(place)
        await self._cluster.run(partial(event_copies.follow, ended=(), changed=progress, owner=self._machine))

    async def _follow(self) -> None:
        """Bring the copies up to date."""
        while changes := await self._state.read(partial(copied_events.changes, limit=_CHANGES)):
            ended = [change.key for change in changes if change.progress is None]
            changed = [(change.key, change.progress) for change in changes if change.progress is not None]
            await self._cluster.run(partial(event_copies.follow, ended=ended, changed=changed, owner=self._machine))
            numbers = [change.number for change in changes]
            await self._state.write(partial(copied_events.followed, numbers=numbers))
            if len(changes) < _CHANGES:
                return

    async def _take_over(self, lease: Lease) -> None:
        """Take over all events of dead machines, together with the other machines that are alive."""
        for dead in await self._cluster.run(event_copies.dead_owners):
            take = partial(event_copies.take_over, dead=dead, owner=self._machine, lease=lease, limit=_EVENTS)
            try:
                while keys := await self._cluster.run(take):
                    await self._adopt(keys)
            except BaseException:
                self._must_adopt = True  # this machine perhaps owns copies whose events it does not have
                raise
            self._reports.report(f"thawd: events of the machine {dead}, which is dead, were taken over")


def _parts(rows: Sequence[bytes]) -> Iterable[tuple[int, int]]:
    """The beginnings and ends of parts of `rows`, each with about `_PLACED_BYTES`."""
    first = size = 0
    for place, row in enumerate(rows):
        size += len(row)
        if size >= _PLACED_BYTES:
            yield first, place + 1
            first, size = place + 1, 0
    if first < len(rows):
        yield first, len(rows)
