"""A connection to PostgreSQL that stops waiting at a deadline, or when its table is closed. Imports psycopg.

psycopg runs each operation as a Python generator, which yields whenever it must wait for the server. psycopg then
waits, and resumes the generator when the server has answered, or at the latest after a tenth of a second.
`PatientConnection` wraps the operation's generator in one that looks at the clock each time it is resumed. After the
deadline, it raises an exception, in the thread that runs the operation. So it needs neither a timer nor another thread.
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
    """A connection that raises `psycopg.OperationalError` at its deadline. Close the connection after that.

    Attributes:
        until: when to stop waiting for an answer, ``time.monotonic()`` seconds.
        given_up: returns whether to stop waiting now, before the deadline.
    """

    until = math.inf
    given_up: Callable[[], bool] = staticmethod(lambda: False)

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Wait for an operation to end, as psycopg does.

        Raises:
            psycopg.OperationalError: the operation failed, or had not ended at the deadline or when `given_up` returned
                True.
        """
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
