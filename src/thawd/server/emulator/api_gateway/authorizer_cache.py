"""Caches the answers of Lambda authorizers for the time to live that is configured.

The key of an entry is the stage, the authorizer and the values of all its identity sources. So a caller gets only what
the authorizer answered for the same identity. As on AWS, all methods of the stage that have the authorizer share an
entry. The policy in the entry is therefore evaluated again for each request.

If two requests invoke an authorizer at the same time, the cache keeps the answer to the later invocation. It does not
keep the answer to an invocation that began before the cache was flushed.

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
    """An answer, the time when the authorizer was invoked for it, and the time until which it is kept."""

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
        """Return the current time, for the argument `asked_s` of `keep`."""
        return self._clock()

    def find(self, stage: tuple[str, str], key: tuple[Hashable, ...]) -> Any:
        """Return the answer for an identity; None: the cache has none, or it has expired.

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
        """Keep an answer for `ttl_s` seconds, unless the cache was flushed or has a later answer.

        Args:
            stage: as for `find`.
            key: as for `find`.
            answer: the answer.
            ttl_s: time to live, seconds; 0: the answer is not kept.
            asked_s: the time when the authorizer was invoked (`now_s`).
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
        """Remove all answers for a stage. Answers to invocations that are running are not kept either."""
        with self._lock:
            self._flushed_s[stage] = self._clock()
            for key in [one for one in self._kept if one[:2] == stage]:
                del self._kept[key]
