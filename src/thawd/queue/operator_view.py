"""What operators see of the queue and the dead letters, and do to them: counts, lists, redrive and removal.

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

MAX_PAGE = 100


class OperatorView:
    """Answers operators' requests. All methods raise `StoreError` when the state file cannot be used.

    Args:
        dead_letters: the dead letters.
        upkeep: returns the figures of the queue.
        wake: called with the names of functions for which events were queued again.
    """

    def __init__(self, dead_letters: DeadLetters, upkeep: Upkeep, *, wake: Callable[[set[str]], None]) -> None:
        self._dead_letters = dead_letters
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

        Returns:
            ``count``, the number of events queued, and ``unknown``, the ids in the selection that no dead letter has.

        Raises:
            InvalidParameterValueException: the selection has not exactly one of ids, function and all (400).
        """
        ids, unknown = await self._resolve(selection)
        functions = await self._dead_letters.redrive(ids)
        self._wake(functions)
        return {"count": len(ids), "unknown": unknown}

    async def remove(self, selection: Selection) -> dict[str, Any]:
        """Delete dead letters. Returns and raises what `redrive` does; ``count`` is the number deleted."""
        ids, unknown = await self._resolve(selection)
        return {"count": await self._dead_letters.remove(ids), "unknown": unknown}

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


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
