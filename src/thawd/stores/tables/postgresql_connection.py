"""A connection to PostgreSQL that stops waiting at a deadline, or when its table is closed. Imports psycopg.

psycopg waits for the server in steps of a tenth of a second, and resumes the operation's generator after each step. At
that point this class ends the operation, in the operation's own thread. It needs no other thread, no timer and no
second descriptor.
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
    """A connection that raises `psycopg.OperationalError` at its deadline, and cannot be used after that.

    Attributes:
        until: when to stop waiting for an answer, ``time.monotonic()`` seconds.
        given_up: returns whether to stop waiting now, before the deadline.
    """

    until = math.inf
    given_up: Callable[[], bool] = staticmethod(lambda: False)

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Wait for an operation to end, as psycopg does; it fails at the deadline or when `given_up` returns True."""
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
