"""Files in ``/dev/shm``. An environment with its own ``/tmp`` also has its own ``/dev/shm``, which ends with it.

Each copy of the process needs the files that init left there. Their contents are kept in memory during the freeze or
the fork, and then written to the copy's own ``/dev/shm``.
"""

import os
import stat
from typing import Dict, Optional, Tuple

FOLDER = "/dev/shm"
MAX_BYTES = 64 << 20
"""Largest total size of the files that are kept for copies."""

# The name under which native/disk.c mounts an environment's own /dev/shm.
_SOURCE = "thawd-shm"
_kept: Dict[str, Tuple[int, bytes]] = {}


def is_own() -> bool:
    """Whether this process has a ``/dev/shm`` of its own, instead of the machine's. Source: proc_pid_mountinfo(5)."""
    try:
        with open("/proc/self/mountinfo", errors="replace") as mounts:
            seen = [line.split(" - ")[1].split()[1] for line in mounts if line.split()[4] == FOLDER]
    except (OSError, IndexError):
        return False
    return bool(seen) and seen[-1] == _SOURCE


def keep() -> Optional[str]:
    """Read the files in ``/dev/shm`` into memory, for copies of this process.

    Returns:
        Why copies cannot get these files, and what to do; None if they can, or if ``/dev/shm`` is the machine's.
    """
    _kept.clear()
    if not is_own():
        return None
    left = MAX_BYTES
    for folder, folders, names in os.walk(FOLDER):
        for name in names + folders:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            left -= status.st_size
            if name in folders or not stat.S_ISREG(status.st_mode) or left < 0:
                return (
                    "init left %s in %s; copies can get only regular files, at most 64 MiB in total. Remove it, create "
                    "it on the first invocation, or put it into the temporary folder" % (name, FOLDER)
                )
            with open(path, "rb") as file:
                _kept[name] = stat.S_IMODE(status.st_mode), file.read()
    return None


def restore() -> None:
    """Write the kept files to the ``/dev/shm`` of this copy, which is empty."""
    if not _kept or not is_own():
        return
    for name, (mode, contents) in _kept.items():
        with open(os.path.join(FOLDER, name), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(contents)
