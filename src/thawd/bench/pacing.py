"""A kernel timer that wakes an event loop with microsecond precision. The timers of uvloop count milliseconds.

Source: timerfd_create(2).
"""

from __future__ import annotations

import ctypes
import os

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_NS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """A timer whose descriptor becomes readable at a given time.

    Attributes:
        fd: descriptor for the event loop to watch.

    Raises:
        OSError: the kernel refuses to create a timer.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._library.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def wake_at(self, time_ns: int) -> None:
        """Make the descriptor readable at `time_ns`, or immediately if that time has passed.

        Args:
            time_ns: the time, as `time.perf_counter_ns` counts it.
        """
        time_ns = max(1, time_ns)
        setting = _Setting(_Timespec(0, 0), _Timespec(time_ns // _NS, time_ns % _NS))
        if self._library.timerfd_settime(self.fd, _ABSOLUTE, ctypes.byref(setting), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Make the descriptor unreadable again after a wake-up."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)
