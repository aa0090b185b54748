"""Keeps what Lambda authorizers have answered, for as long as their time to live says.

An entry belongs to one authorizer in one stage and to all values of its identity sources. So a caller gets only what
the authorizer answered for the same identity. On AWS an entry serves all methods of the stage that have the authorizer;
so does it here, and therefore the policy in it is evaluated again for each request.

Two requests may ask an authorizer at the same time. The answer to the later question stays, and an answer to a question
from before a flush is not kept.

Source: API Gateway developer guide, "Use API Gateway Lambda authorizers", caching; "Control access to HTTP APIs with
AWS Lambda authorizers", caching authorizer responses.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

_MOST = 10_000


class _Kept(NamedTuple):
    """An answer, when the authorizer was asked for it, and until when it is kept."""

    asked_s: float
    until_s: float
    answer: Any


class AuthorizerCache:
    """The answers of authorizers.

    Args:
        clock: seconds, from any starting point.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[tuple[Hashable, ...], _Kept] = collections.OrderedDict()
        self._flushed_s: dict[tuple[str, str], float] = {}

    def now_s(self) -> float:
        """Return the time at which a question that is asked now is asked, for `keep`."""
        return self._clock()

    def find(self, stage: tuple[str, str], key: tuple[Hashable, ...]) -> Any:
        """Return the answer for an identity; None: there is none, or its time is over.

        Args:
            stage: id of the API, and name of the stage.
            key: the authorizer and the values of its identity sources.
        """
        with self._lock:
            kept = self._kept.get((*stage, *key))
            return kept.answer if kept is not None and self._clock() < kept.until_s else None

    def keep(
        self, stage: tuple[str, str], key: tuple[Hashable, ...], answer: Any, *, ttl_s: float, asked_s: float
    ) -> None:
        """Keep an answer for `ttl_s` seconds, unless it is out of date.

        Args:
            stage: as for `find`.
            key: as for `find`.
            answer: the answer.
            ttl_s: how long, seconds; 0: it is not kept.
            asked_s: when the authorizer was asked (`now_s`).
        """
        if ttl_s <= 0:
            return
        with self._lock:
            known = self._kept.get((*stage, *key))
            if asked_s <= self._flushed_s.get(stage, float("-inf")) or (known is not None and known.asked_s > asked_s):
                return
            self._kept[(*stage, *key)] = _Kept(asked_s, self._clock() + ttl_s, answer)
            self._kept.move_to_end((*stage, *key))
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def flush(self, stage: tuple[str, str]) -> None:
        """Forget all answers for a stage, also those to questions that have not been answered yet."""
        with self._lock:
            self._flushed_s[stage] = self._clock()
            for key in [one for one in self._kept if one[:2] == stage]:
                del self._kept[key]
