"""Records which files init reads. When one of them has changed, the snapshot must not be used again.

It records loaded modules, files that Python code opens for reading, and files that it tried to open and did not find:
these must still be missing. It does not notice files that native code reads
without mapping them; thaw itself checks mapped files. Files in two folders are left out: the code folder, which never
changes, and the process's own temporary folder, which is stored with the snapshot.
"""

import builtins
import functools
import io
import json
import os
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

# Path, size in bytes, modification time in nanoseconds, inode.
Stamp = Tuple[str, int, int, int]

# File times advance only every few milliseconds. A file that changed during init may have a time a little before the
# beginning of init, so changes within this time before init count as changes during init.
# Source: inode_timestamps(7), current_time().
_CLOCK_NS = 100_000_000
# The kernel makes the contents of these folders, and they may differ at each reading.
_MADE_BY_KERNEL = ("/proc/", "/sys/", "/dev/")
_ABSENT = (-1, 0, 0)  # size, time and inode in the stamp of a file that was missing


class _Open:
    """Replaces `open` during init.

    This is not a function: if user code assigned a function to a class attribute, Python would make it a method. The
    real `open`, which is written in C, does not become one.
    """

    def __init__(self, opened: Set[str], missing: Set[str]) -> None:
        self._open = builtins.open
        self._opened = opened
        self._missing = missing
        functools.update_wrapper(self, self._open)

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        try:
            stream = self._open(file, mode, *args, **kwargs)
        except FileNotFoundError:
            self._record(file, mode, self._missing)
            raise
        self._record(file, mode, self._opened)
        return stream

    def _record(self, file: Any, mode: str, paths: Set[str]) -> None:
        if isinstance(mode, str) and not set(mode) & set("wax+"):
            try:
                paths.add(os.path.abspath(os.fsdecode(file)))
            except TypeError:
                pass  # `file` is a descriptor, so its path is not known here


class SourceFiles:
    """The files that an init phase reads.

    An audit hook would notice more files. But it cannot be removed, and makes `id` and `copy.deepcopy` permanently
    slower by half.
    """

    def __init__(self) -> None:
        self._opened: Set[str] = set()
        self._missing: Set[str] = set()
        self._real = builtins.open
        self._begun_ns = 0

    def watch(self) -> None:
        """Start recording."""
        self._begun_ns = time.time_ns() - _CLOCK_NS
        builtins.open = io.open = _Open(self._opened, self._missing)

    def stop(self) -> None:
        """Stop recording. References to the wrapped `open` remain valid; each call through one takes 0.1 us longer."""
        builtins.open = io.open = self._real

    def stamps(self, kept: List[str], base: Sequence[Sequence[Stamp]] = ()) -> List[Sequence[Stamp]]:
        """The stamps of all files that were read and still exist, or were missing, outside the folders in `kept`.

        Args:
            kept: folders that are stored with the snapshot.
            base: the stamps of the base of which this process is a copy. They are the first part of the result: of a
                file that the base has loaded, memory holds what the file contained then.
        """
        paths = set(self._opened)
        for module in list(sys.modules.values()):
            file = file_of(module)
            if isinstance(file, str):
                paths.add(os.path.abspath(file))
        left_out = tuple(os.path.join(folder, "") for folder in kept) + _MADE_BY_KERNEL
        paths.difference_update(stamp[0] for stamps in base for stamp in stamps)
        found = [_stamp(path) for path in sorted(paths) if not path.startswith(left_out)]
        missing = self._missing - paths - {stamp[0] for stamps in base for stamp in stamps}
        absent = [_if_missing(path) for path in sorted(missing) if not path.startswith(left_out)]
        return [*base, [self._unless_changed_during_init(stamp) for stamp in found if stamp is not None] + absent]

    def _unless_changed_during_init(self, stamp: Stamp) -> Stamp:
        """The stamp; for a file that changed during init, a stamp that no file can have.

        It is unknown whether init read that file's old or new content, so the snapshot must not be used again.
        """
        path, size, modified_ns, inode = stamp
        return stamp if modified_ns < self._begun_ns else (path, size, -1, inode)


def changed(stamps: Sequence[Sequence[Stamp]], here: Optional[Mapping[Stamp, Stamp]] = None) -> Optional[str]:
    """The first file that differs from its stamp; None when there is none.

    Args:
        stamps: the stamps that were recorded at the freeze.
        here: for a snapshot that was made on another machine, the stamps of the same files on this one.
    """
    for part in stamps:
        for stamp in part:
            if (_stamp(stamp[0]) or (stamp[0], *_ABSENT)) != (here or {}).get(stamp, stamp):
                return stamp[0]
    return None


def write_stamps(path: str, stamps: Sequence[Sequence[Stamp]]) -> None:
    """Write stamps to a new file, for the list of files that the platform keeps with the snapshot.

    Without that file the snapshot is used on this machine as ever; it only cannot be sent to another one. So an error
    is no reason to fail.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            json.dump([stamp for part in stamps for stamp in part], file)
    except (OSError, ValueError):
        pass


def stamps_here(path: str) -> Dict[Stamp, Stamp]:
    """From the list of a snapshot that was made on another machine: by stamp, the same file's stamp on this machine.

    Raises:
        OSError, ValueError, KeyError: there is no such list.
    """
    with open(path, "rb") as file:
        files = json.load(file)["files"]
    moved: Dict[Stamp, Stamp] = {}
    for one in files:
        if one.get("frozen") is not None:
            modified_ns, inode = one["frozen"]
            there = one["path"], one["bytes"], modified_ns, inode
            moved[there] = one["path"], one["bytes"], one["modified_ns"], one["inode"]
    return moved


def file_of(module: Any) -> Any:
    """The module's `__file__`; reading it this way does not load a lazy module."""
    try:
        return object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:
        return None


def _if_missing(path: str) -> Stamp:
    """The stamp of a file that init did not find; one that no file can have if the file exists by now."""
    return (path, *_ABSENT) if _stamp(path) is None else (path, 0, -1, 0)


def _stamp(path: str) -> Optional[Stamp]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return path, status.st_size, status.st_mtime_ns, status.st_ino
