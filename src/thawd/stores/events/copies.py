"""Copies of events outside this machine: what the queue needs from whatever keeps them.

A copy is stored before its event. So when the event can run, or its caller has an answer, this machine is not the only
one that has the event. If the event then cannot be stored, the copy is withdrawn. When the event changes or ends, its
copy follows a little later: until then, another machine that takes the event over runs it once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from thawd.stores.events.event_rows import NewEvent


class Copies(Protocol):
    """Keeps a copy of each event outside this machine, so that the loss of the machine loses no event."""

    @property
    def may_run(self) -> bool:
        """Whether events may begin to run here. If not, another machine has perhaps taken them over."""

    async def place(self, events: Sequence[tuple[NewEvent, float]]) -> list[str]:
        """Store copies of events, each with the time when it was accepted. Returns the keys of the copies.

        Until `placed` is called with these keys, the copies count as being in use.

        Raises:
            StoreError: the copies could not be stored.
        """

    def placed(self, keys: Sequence[str]) -> None:
        """The events of these copies are in the state file, or `withdraw` was called for them."""

    async def withdraw(self, keys: Sequence[str]) -> None:
        """Remove copies of events that were not accepted after all.

        Raises:
            UnknownOutcomeError: the copies could not be removed, so their events will perhaps run.
        """

    async def note_run(self, event_id: int, *, runs: bool) -> None:
        """Have the copy of an event say that it runs, or runs no longer. An event without a copy is ignored.

        If this machine dies while the copy says that the event runs, the event counts as interrupted once more.

        Raises:
            StoreError: the copy could not be changed.
        """

    def changed(self) -> None:
        """Events in the state file have changed, so that their copies must follow, soon but not now."""


@contextlib.asynccontextmanager
async def placing(
    copies: Copies | None, events: Sequence[tuple[NewEvent, float]]
) -> AsyncIterator[Sequence[str] | None]:
    """A context in which events are stored whose copies exist already. If that fails, the copies are removed.

    Args:
        copies: keeps the copies; None: there are none.
        events: the events, each with the time when it was accepted, seconds since the epoch.

    Yields:
        The keys of the copies, in the order of the events; None if there are no copies.

    Raises:
        StoreError: the copies could not be stored.
        UnknownOutcomeError: the events could not be stored, and the copies could not be removed.
    """
    if copies is None or not events:
        yield None
        return
    keys = await copies.place(events)
    try:
        yield keys
    except BaseException:
        await copies.withdraw(keys)
        raise
    finally:
        copies.placed(keys)


async def withdraw_refused(
    copies: Copies | None,
    keys: Sequence[str] | None,
    groups: Sequence[tuple[Sequence[NewEvent], float]],
    ids: Sequence[int | None],
) -> None:
    """Remove the copies of those groups of events that were not accepted.

    Args:
        copies: keeps the copies; None: there are none.
        keys: the keys of the copies of all groups; None: there are no copies.
        groups: the groups.
        ids: the first id of each group; None for a group that was not accepted.

    Raises:
        UnknownOutcomeError: the copies could not be removed, so their events will perhaps run.
    """
    if copies is None or keys is None or None not in ids:
        return
    refused: list[str] = []
    first = 0
    for (events, _), first_id in zip(groups, ids, strict=True):
        if first_id is None:
            refused += keys[first : first + len(events)]
        first += len(events)
    await copies.withdraw(refused)
