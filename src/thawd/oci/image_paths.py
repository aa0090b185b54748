"""Resolves paths inside an image: symbolic links lead to paths in the image, as for a process that has it as its root.

No other process writes into the folder while it is filled. So a path does not change after it was checked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence

from thawd.errors import ImageError

_MOST_LINKS = 40  # as many as Linux follows; path_resolution(7)


def resolve_folder(
    root: str, parts: Sequence[str], *, what: str, make: Callable[[str], None] | None = None
) -> str | None:
    """Return the folder at a path in an image, following links inside the image.

    Args:
        root: the image's folder.
        parts: components of the path.
        what: names the path in messages.
        make: called to make each missing folder; None: missing folders are not made.

    Returns:
        The path on this machine, without links below `root`; None: a component is missing, or is no folder, and `make`
        is None.

    Raises:
        ImageError: a link leads out of the image or in a circle, or a file is where a folder is needed (HTTP 400).
    """
    waiting = list(reversed(parts))
    at: list[str] = []
    links = 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                raise ImageError(f"{what}: a symbolic link in its path leads out of the image's folder; it is refused")
            at.pop()
            continue
        path = "/".join((root, *at, part))
        mode = _mode(path, what)
        if mode is None:
            if make is None:
                return None
            make(path)
            at.append(part)
        elif stat.S_ISDIR(mode):
            at.append(part)
        elif stat.S_ISLNK(mode):
            links += 1
            if links > _MOST_LINKS:
                raise ImageError(f"{what}: the symbolic links in its path lead in a circle")
            target = os.readlink(path)
            if target.startswith("/"):
                at = []
            waiting += reversed(target.split("/"))
        elif make is None:
            return None
        else:
            raise ImageError(f"{what}: {'/'.join((*at, part))} is a file, and a folder is needed there")
    return "/".join((root, *at))


def _mode(path: str, what: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ImageError(f"{what}: {error.strerror}") from None
