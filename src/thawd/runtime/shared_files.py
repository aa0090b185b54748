"""Files in ``/dev/shm``, which an environment has for itself where it has its own ``/tmp``; they end with it.

Each copy of the process is to find what init left there: the contents are kept in memory across the freeze or the fork,
and written into the copy's own.
"""

import os
import stat
from typing import Dict, Optional, Tuple

FOLDER = "/dev/shm"
MAX_BYTES = 64 << 20
"""What a copy is given at most."""

# As native/disk.c calls it.
_SOURCE = "thawd-shm"
_kept: Dict[str, Tuple[int, bytes]] = {}


def is_own() -> bool:
    """Whether this process sees a ``/dev/shm`` that was mounted for it. Source: proc_pid_mountinfo(5)."""
    try:
        with open("/proc/self/mountinfo") as mounts:
            seen = [line.split(" - ")[1].split()[1] for line in mounts if line.split()[4] == FOLDER]
    except (OSError, IndexError):
        return False
    return bool(seen) and seen[-1] == _SOURCE


def keep() -> Optional[str]:
    """Remember what is in it, for the copies of this process; why they cannot be given it, with the way out."""
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
                    "init left %s in %s, and a copy is given regular files of 64 MiB in all; remove it, make it on the "
                    "first invocation, or keep it in the temporary folder" % (name, FOLDER)
                )
            with open(path, "rb") as file:
                _kept[name] = stat.S_IMODE(status.st_mode), file.read()
    return None


def give_back() -> None:
    """In a copy, which sees an empty one: the files as they were."""
    if not _kept or not is_own():
        return
    for name, (mode, contents) in _kept.items():
        with open(os.path.join(FOLDER, name), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(contents)
