"""Which files outside its code the init phase read: a snapshot must not be used again after one of them has changed.

Seen are the modules that are loaded and what Python code opened for reading. What native code read without mapping it
goes unseen; files that are mapped are looked at by thaw itself. Left out are files below the code folder, which is kept
by content, and below the process's own temporary folder, which is kept with the snapshot.
"""

import builtins
import functools
import io
import os
import sys
import time
from typing import Any, List, Optional, Set, Tuple

# Path, size, time of change in nanoseconds, inode.
Stamp = Tuple[str, int, int, int]

# Times of files come from a clock that ticks every few milliseconds. Source: inode_timestamps(7), current_time().
_CLOCK_NS = 100_000_000
_PASSING = ("/proc/", "/sys/", "/dev/")


class _Open:
    """Stands in for `open` during init. An object and no function: as an attribute of a class it must not bind."""

    def __init__(self, opened: Set[str]) -> None:
        self._open = builtins.open
        self._opened = opened
        functools.update_wrapper(self, self._open)

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        stream = self._open(file, mode, *args, **kwargs)
        if isinstance(mode, str) and not set(mode) & set("wax+"):
            try:
                self._opened.add(os.path.abspath(os.fsdecode(file)))
            except TypeError:
                pass  # a descriptor, opened by a call that is not seen here
        return stream


class SourceFiles:
    """The files that an init phase reads.

    An audit hook would see more opens, but cannot be removed, and slows `id` and `copy.deepcopy` down by half for good.
    """

    def __init__(self) -> None:
        self._opened: Set[str] = set()
        self._real = builtins.open
        self._begun_ns = 0

    def watch(self) -> None:
        """Take note from now on."""
        self._begun_ns = time.time_ns() - _CLOCK_NS
        builtins.open = io.open = _Open(self._opened)

    def stop(self) -> None:
        """Take no more notes. Who took `open` for himself meanwhile keeps one that is 0.1 us slower."""
        builtins.open = io.open = self._real

    def stamps(self, kept: List[str]) -> List[Stamp]:
        """What to compare by: of each file that was read and is still there, outside the folders in `kept`."""
        paths = set(self._opened)
        for module in list(sys.modules.values()):
            file = _file_of(module)
            if isinstance(file, str):
                paths.add(os.path.abspath(file))
        left_out = tuple(os.path.join(folder, "") for folder in kept) + _PASSING
        stamps = [_stamp(path) for path in sorted(paths) if not path.startswith(left_out)]
        return [self._if_it_lay_still(stamp) for stamp in stamps if stamp is not None]

    def _if_it_lay_still(self, stamp: Stamp) -> Stamp:
        """A stamp that no file has for one that changed during init: nobody can tell what init saw of it."""
        path, size, modified_ns, inode = stamp
        return stamp if modified_ns < self._begun_ns else (path, size, -1, inode)


def changed(stamps: List[Stamp]) -> Optional[str]:
    """The first file that is not as it was; None when all are."""
    for stamp in stamps:
        if _stamp(stamp[0]) != stamp:
            return stamp[0]
    return None


def _file_of(module: Any) -> Any:
    """The module's `__file__`, without waking one that loads itself when it is looked at."""
    try:
        return object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None


def _stamp(path: str) -> Optional[Stamp]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return path, status.st_size, status.st_mtime_ns, status.st_ino
