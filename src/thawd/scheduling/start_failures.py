"""The failed starts of one pool: how long to wait before the next start, and with which error requests fail until then.

Guarantees:
- after a failed start there is a back-off, unless something outside thawd had killed the process and no other start
  follows until the next request comes;
- if the init phase failed at publication, the first request repeats it without a back-off.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from thawd.environments.init_phase import InitError
from thawd.errors import ServiceException
from thawd.system.retry import backoff_s

_FIRST_S = 1.0
_LONGEST_S = 60.0
_UNUSED_DEATHS = 3


class StartFailures:
    """Records the failed starts of a pool.

    Args:
        on_retry: called when a back-off has ended.

    Attributes:
        error: the error of the last start; None if that succeeded, or if there was none.
        until_s: no other start is tried before this time, ``time.monotonic()`` seconds.
    """

    __slots__ = ("_first_try_left", "_in_a_row", "_on_retry", "_unused_deaths", "error", "until_s")

    def __init__(self, on_retry: Callable[[], None]) -> None:
        self._on_retry = on_retry
        self.error: InitError | ServiceException | None = None
        self.until_s = -math.inf
        self._in_a_row = 0
        self._unused_deaths = 0
        self._first_try_left = False  # init failed at publication, and no request has repeated it yet

    def backs_off(self) -> bool:
        """Return whether no environment may be started now."""
        return self.error is not None and time.monotonic() < self.until_s

    @property
    def reason(self) -> str | None:
        """Why the last start failed, if the next start has to wait for the end of a back-off; else None."""
        return str(self.error) if self.backs_off() else None

    @property
    def is_init(self) -> bool:
        """Whether it was the init phase that failed."""
        return isinstance(self.error, InitError)

    def check(self) -> None:
        """Check that a request that needs a new environment may wait for it.

        Raises:
            InitError: the init phase failed, and the back-off has not ended.
            ServiceException: the last start failed, and the back-off has not ended (500).
        """
        if self.backs_off() and not self._first_try_left:
            assert self.error is not None
            raise copy_of(self.error)
        if self._first_try_left:
            self.until_s = -math.inf

    def asked(self) -> None:
        """A request has come: later requests wait for the end of a back-off."""
        self._first_try_left = False

    def seed(self, error: InitError | ServiceException) -> None:
        """Record that the init phase failed at publication. The first request repeats it without a back-off.

        Source: AWS Lambda developer guide, "Failures during the Init phase": init runs again with the first invoke.
        """
        self.failed(error)
        self._first_try_left = True

    def failed(self, error: InitError | ServiceException, *, is_repeated: bool = False) -> None:
        """A start has failed: back off, unless something outside thawd was the cause.

        Args:
            error: why it failed.
            is_repeated: whether another start follows without a new request. Then back off in any case: the same thing
                may kill each process, for example because the machine is out of memory.
        """
        is_excused = isinstance(error, InitError) and error.from_outside and not is_repeated
        if is_excused or self.backs_off():
            return
        self._in_a_row += 1
        wait_s = backoff_s(self._in_a_row, first_s=_FIRST_S, longest_s=_LONGEST_S)
        self.error, self.until_s = copy_of(error), time.monotonic() + wait_s
        asyncio.get_running_loop().call_later(wait_s, self._retry, self.error)

    def succeeded(self) -> None:
        """An environment has started."""
        self.error = None
        self._in_a_row = 0

    def used(self) -> None:
        """An invocation has ended, so environments do not all die before they are used."""
        self._unused_deaths = 0

    def died_unused(self, error: InitError) -> bool:
        """An environment has died before its first invocation; the next one may do so, too.

        Returns:
            Whether this counts as a failed start. If something outside thawd killed the process, only the third such
            death in a row does.
        """
        self._unused_deaths += 1
        return not error.from_outside or self._unused_deaths >= _UNUSED_DEATHS

    def _retry(self, error: InitError | ServiceException) -> None:
        """End the back-off. `until_s` is cleared because the loop's timer may fire slightly before that time."""
        if error is self.error:
            self.until_s = -math.inf
        self._on_retry()


def copy_of(error: InitError | ServiceException) -> InitError | ServiceException:
    """Copy an error. One exception object that is raised for many callers would keep their stack frames in memory."""
    if isinstance(error, InitError):
        return InitError(str(error), error.document, from_outside=error.from_outside)
    return ServiceException(error.message)
