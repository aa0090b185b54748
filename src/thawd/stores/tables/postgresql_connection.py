"""A connection to PostgreSQL whose waits end: at a deadline, or when its table is closed. Imports psycopg.

psycopg waits for the server in steps of a tenth of a second and tells the operation under way of each; that is where
it is ended, in its own thread. No thread, no timer and no second descriptor is needed for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that fails with `psycopg.OperationalError` when its patience is over; it cannot be used then.

    Attributes:
        until: up to when an answer is waited for, ``time.monotonic()`` seconds.
        given_up: whether none is waited for any more, at once.
    """

    until = math.inf
    given_up: Callable[[], bool] = staticmethod(lambda: False)

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Wait for an operation to end, as psycopg does for each of its own, and not for ever."""
        return super().wait(self._patiently(gen), *args, **kwargs)

    def _patiently(self, gen: PQGen[T]) -> PQGen[T]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if self.given_up():
                    raise psycopg.OperationalError("thawd is shutting down")
                if time.monotonic() >= self.until:
                    raise psycopg.OperationalError("the server did not answer in time")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
