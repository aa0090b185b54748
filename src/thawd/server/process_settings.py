"""Settings of the server's process: its interpreter, its C library, and its children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

from thawd.system import threads
from thawd.telemetry.console import complain

# The time for which a thread can keep Python's interpreter lock (GIL) while another thread waits for it. A store's
# thread needs the lock again after each step of SQLite. With Python's default of 5 ms, only half as many events could
# be stored in a second.
_SWITCH_S = 0.0001
# The threshold's number and its initial value in glibc; see `_give_memory_back`. Source: glibc's malloc.h.
_M_MMAP_THRESHOLD = -3
_RETURNED_BYTES = 128 << 10
# Source: <linux/prctl.h>.
_PR_SET_CHILD_SUBREAPER = 36


def apply() -> None:
    """Apply all settings. Call it before the event loop runs."""
    sys.setswitchinterval(_SWITCH_S)
    threads.spare_address_space()
    _give_memory_back()
    _adopt_strays()


def _give_memory_back() -> None:
    """Have glibc return each freed block of memory of at least `_RETURNED_BYTES` to the system immediately.

    By default glibc raises this limit, up to 32 MiB, when a larger block is freed. Then the memory for the bodies of a
    hundred slow requests could stay with this process. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)


def _adopt_strays() -> None:
    """Become the parent of processes that functions leave behind, so that thawd can end them with their environment.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER, Linux 3.4.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:
        return  # not Linux
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0:
        reason = os.strerror(ctypes.get_errno())
        complain(
            f"thawd: prctl(PR_SET_CHILD_SUBREAPER) was refused ({reason}); processes that functions detach may "
            "continue to run when their environments have ended"
        )
