"""Log groups and their files: ``/aws/lambda/NAME`` is in ``NAME.log``, any other group ``NAME`` in ``=NAME.log``."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

DEFAULT_PREFIX = "/aws/lambda/"
_LONGEST = 240  # a file's name has at most 255 bytes, and rotation appends to it
_KEPT = 100
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE = re.compile(r"(=?)([^=]+)\.log(?:\.\d)?")


def path_of_group(folder: Path, group: str) -> Path:
    """Return the path of the newest file of `group` in the folder of logs."""
    name = group.removeprefix(DEFAULT_PREFIX)
    if group.startswith(DEFAULT_PREFIX) and _PLAIN.fullmatch(name):
        return folder / f"{name}.log"
    # "=" and "," make the name unique: no function's name begins with an equals sign, and no log group has a comma.
    plain = f"={group.replace('/', ',')}"
    if len(plain) > _LONGEST:
        # No log group has a tilde. Such a file does not tell the whole name of its group.
        plain = f"{plain[:_KEPT]}~{hashlib.blake2b(group.encode(), digest_size=16).hexdigest()}"
    return folder / f"{plain}.log"


def group_names(folder: Path) -> list[str]:
    """Return the names of the log groups that have a log, sorted; groups with very long names are left out.

    Raises:
        OSError: the folder cannot be read.
    """
    found = set()
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None and "~" not in match[2]:
            found.add(match[2].replace(",", "/") if match[1] else DEFAULT_PREFIX + match[2])
    return sorted(found)
