"""A timer of the kernel that wakes an event loop to some microseconds; the loop's own timers keep to milliseconds.

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
    """Readable once a time has come.

    Attributes:
        fd: to be watched for being readable.

    Raises:
        OSError: the kernel has none to give.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._library.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def wake_at(self, time_ns: int) -> None:
        """Be readable at `time_ns` of the monotonic clock, `time.perf_counter_ns`'s; at once if that is past."""
        time_ns = max(1, time_ns)
        setting = _Setting(_Timespec(0, 0), _Timespec(time_ns // _NS, time_ns % _NS))
        if self._library.timerfd_settime(self.fd, _ABSOLUTE, ctypes.byref(setting), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Take note of the wake-up."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give it back."""
        os.close(self.fd)
