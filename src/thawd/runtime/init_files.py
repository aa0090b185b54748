"""Notes the files outside the code folder that init reads: once one has changed, the snapshot must not be used again.

Notes loaded modules and files that Python code opens for reading. Files that native code reads without mapping them are
not seen; thaw itself checks mapped files. Files in the code folder, which is stored by content, and in the process's
own temporary folder, which is stored with the snapshot, are left out.
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

# The clock of file times ticks every few milliseconds. Source: inode_timestamps(7), current_time().
_CLOCK_NS = 100_000_000
_PASSING = ("/proc/", "/sys/", "/dev/")


class _Open:
    """Replaces `open` during init. An object rather than a function: as a class attribute it must not bind."""

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
                pass  # a descriptor that an unseen call has opened
        return stream


class SourceFiles:
    """The files that an init phase reads.

    An audit hook would see more opens, but it cannot be removed, and it permanently slows `id` and `copy.deepcopy`
    down by half.
    """

    def __init__(self) -> None:
        self._opened: Set[str] = set()
        self._real = builtins.open
        self._begun_ns = 0

    def watch(self) -> None:
        """Start taking notes."""
        self._begun_ns = time.time_ns() - _CLOCK_NS
        builtins.open = io.open = _Open(self._opened)

    def stop(self) -> None:
        """Stop taking notes. References to the wrapped `open` stay valid; they cost 0.1 us a call more."""
        builtins.open = io.open = self._real

    def stamps(self, kept: List[str]) -> List[Stamp]:
        """The stamps of all files that were read and still exist, outside the folders in `kept`."""
        paths = set(self._opened)
        for module in list(sys.modules.values()):
            file = _file_of(module)
            if isinstance(file, str):
                paths.add(os.path.abspath(file))
        left_out = tuple(os.path.join(folder, "") for folder in kept) + _PASSING
        stamps = [_stamp(path) for path in sorted(paths) if not path.startswith(left_out)]
        return [self._if_it_lay_still(stamp) for stamp in stamps if stamp is not None]

    def _if_it_lay_still(self, stamp: Stamp) -> Stamp:
        """The stamp, or for a file changed during init one that no file has: init may have read either content."""
        path, size, modified_ns, inode = stamp
        return stamp if modified_ns < self._begun_ns else (path, size, -1, inode)


def changed(stamps: List[Stamp]) -> Optional[str]:
    """The first file that differs from its stamp; None when there is none."""
    for stamp in stamps:
        if _stamp(stamp[0]) != stamp:
            return stamp[0]
    return None


def _file_of(module: Any) -> Any:
    """The module's `__file__`, without triggering the loading of a lazy module."""
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
