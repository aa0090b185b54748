"""Keeps what Lambda authorizers have answered, for as long as their time to live says.

An entry belongs to one authorizer in one stage and to all values of its identity sources. So a caller gets only what
the authorizer answered for the same identity. On AWS an entry serves all methods of the stage that have the authorizer;
so does it here, and therefore the policy in it is evaluated again for each request.

Source: API Gateway developer guide, "Use API Gateway Lambda authorizers", caching; "Control access to HTTP APIs with
AWS Lambda authorizers", caching authorizer responses.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

_MOST = 10_000


class AuthorizerCache:
    """The answers of authorizers.

    Args:
        clock: seconds, from any starting point.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[tuple[Hashable, ...], tuple[float, Any]] = collections.OrderedDict()

    def find(self, stage: tuple[str, str], key: tuple[Hashable, ...]) -> Any:
        """The answer for an identity; None: there is none, or its time is over.

        Args:
            stage: id of the API, and name of the stage.
            key: the authorizer and the values of its identity sources.
        """
        with self._lock:
            until_s, answer = self._kept.get((*stage, *key), (0.0, None))
            return answer if answer is not None and self._clock() < until_s else None

    def keep(self, stage: tuple[str, str], key: tuple[Hashable, ...], answer: Any, *, ttl_s: float) -> None:
        """Keep an answer for `ttl_s` seconds; the other arguments are as for `find`."""
        if ttl_s <= 0:
            return
        with self._lock:
            self._kept[(*stage, *key)] = (self._clock() + ttl_s, answer)
            self._kept.move_to_end((*stage, *key))
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)

    def flush(self, stage: tuple[str, str]) -> None:
        """Forget all answers for a stage."""
        with self._lock:
            for key in [one for one in self._kept if one[:2] == stage]:
                del self._kept[key]
