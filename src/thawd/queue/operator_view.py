"""What operators see of the queue and the dead letters, and do to them: counts, lists, redrive, removal, undo.

This module makes the JSON documents with which `thawd.gateway.thawd_api.queue` answers `thawd queue` and `thawd dead`.
Payloads may be secret: only the document of a single dead letter contains its payload, lists do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException
from thawd.queue.maintenance import Upkeep
from thawd.stores.events.dead_letters import DeadLetter, DeadLetters, Selection
from thawd.stores.events.removals import KEPT_S, Removal, Removals

MAX_PAGE = 100


class OperatorView:
    """Answers operators' requests. All methods raise `StoreError` when the state file cannot be used.

    Args:
        dead_letters: the dead letters.
        removals: the removals of dead letters.
        upkeep: returns the figures of the queue.
        wake: called with the names of functions for which events were queued again.
    """

    def __init__(
        self, dead_letters: DeadLetters, removals: Removals, upkeep: Upkeep, *, wake: Callable[[set[str]], None]
    ) -> None:
        self._dead_letters = dead_letters
        self._removals = removals
        self._upkeep = upkeep
        self._wake = wake

    async def overview(self) -> dict[str, Any]:
        """Return the figures of the queue: `Upkeep.overview` under the key ``functions``."""
        return {"functions": await self._upkeep.overview()}

    async def page(self, function: str | None, *, after: int, limit: int) -> dict[str, Any]:
        """Return a page of dead letters without their payloads, in the order in which the events were accepted.

        Args:
            function: list only this function's dead letters; None: those of all functions.
            after: list only dead letters with an id larger than this.
            limit: most dead letters in the page, 1 to `MAX_PAGE`.

        Returns:
            ``dead_letters``, the page, and ``next``, the `after` of the next page (None: this is the last page).
        """
        limit = max(1, min(limit, MAX_PAGE))
        letters = await self._dead_letters.page(function, after=after, limit=limit, payloads=False)
        following = letters[-1].id if len(letters) == limit else None
        return {"dead_letters": [_summary(letter) for letter in letters], "next": following}

    async def show(self, number: int) -> dict[str, Any]:
        """Return one dead letter with its payload, trace header and client context.

        Raises:
            ResourceNotFoundException: no dead letter has that id (404).
        """
        for letter in await self._dead_letters.find([number]):
            more = {"trace_id": letter.trace_id, "client_context": letter.client_context}
            return {**_summary(letter), **more, "payload": msgspec.Raw(letter.payload)}
        raise ResourceNotFoundException(f"there is no dead letter {number}")

    async def redrive(self, selection: Selection) -> dict[str, Any]:
        """Queue dead letters again, as if they had just been accepted.

        If a dead letter has an outcome that could not be delivered, only that is delivered; the event does not run.
        This cannot be undone.

        Returns:
            ``count``, the number of events queued, and ``unknown``, the ids in the selection that no dead letter has.

        Raises:
            InvalidParameterValueException: the selection has not exactly one of ids, function and all (400).
        """
        ids, unknown = await self._resolve(selection)
        functions = await self._dead_letters.redrive(ids)
        self._wake(set(functions))
        return {"count": functions.total(), "unknown": unknown}

    async def remove(self, selection: Selection) -> dict[str, Any]:
        """Remove dead letters. For some minutes, that can be undone.

        Returns:
            What `redrive` returns, with ``count``, the number removed; and ``undo``, the removal, with its ``id``,
            ``count``, and the times ``removed_at`` and ``until``. None: it cannot be undone.

        Raises:
            InvalidParameterValueException: the selection has not exactly one of ids, function and all (400).
        """
        ids, unknown = await self._resolve(selection)
        count, removal = await self._removals.remove(ids)
        return {"count": count, "unknown": unknown, "undo": None if removal is None else _removal(removal)}

    async def preview(self, selection: Selection) -> dict[str, Any]:
        """Return what a removal would do: ``count``, ``unknown``, and ``can_undo``. Raises what `remove` does."""
        ids, unknown = await self._resolve(selection)
        return {"count": len(ids), "unknown": unknown, "can_undo": await self._removals.fits(ids)}

    async def removals(self) -> dict[str, Any]:
        """Return the removals that can be undone, the newest first, under the key ``removals``."""
        return {"removals": [_removal(each) for each in await self._removals.list()]}

    async def undo(self, removal_id: int) -> dict[str, Any]:
        """Make dead letters again of what a removal has removed. Returns ``count``, how many.

        Raises:
            ResourceNotFoundException: it was undone before, is too old, or there never was such a removal (404).
        """
        count = await self._removals.undo(removal_id)
        if not count:
            raise ResourceNotFoundException(
                f"removal {removal_id} cannot be undone: it was undone before, or is older than {KEPT_S / 60:.0f} "
                "minutes"
            )
        return {"count": count}

    async def _resolve(self, selection: Selection) -> tuple[Sequence[int], list[int]]:
        ways = [selection.ids is not None, selection.function is not None, selection.all]
        if ways.count(True) != 1:
            raise InvalidParameterValueException(
                "choose the dead letters by ids, by function, or all of them: exactly one of the three"
            )
        if selection.ids is None:
            return await self._dead_letters.ids(selection.function), []
        wanted = list(dict.fromkeys(selection.ids))
        known = set(await self._dead_letters.ids())
        return [number for number in wanted if number in known], [n for n in wanted if n not in known]


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "function": letter.function,
        "qualifier": letter.qualifier,
        "request_id": letter.request_id,
        "source": letter.source,
        "condition": letter.condition,
        "error": letter.error,
        "attempts": letter.attempts,
        "accepted_at": _time(letter.accepted_at),
        "buried_at": _time(letter.buried_at),
        "outcome_kept": letter.has_outcome,
        "payload_bytes": letter.payload_bytes,
    }


def _removal(removal: Removal) -> dict[str, Any]:
    return {
        "id": removal.id,
        "count": removal.count,
        "removed_at": _time(removal.removed_at),
        "until": _time(removal.until),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
