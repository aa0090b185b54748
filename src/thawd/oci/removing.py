"""Removes folders of images, also folders whose modes forbid it, and deep ones."""

from __future__ import annotations

import os
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove a folder with its contents, also where the modes of folders forbid it. Missing is fine.

    Raises:
        OSError: it cannot be removed.
    """
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    # `shutil.rmtree` and `os.walk` are recursive in some versions of Python, and end at a depth of a thousand folders.
    waiting, emptied = [str(folder)], []
    while waiting:
        place = waiting.pop()
        emptied.append(place)
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            os.chmod(place, 0o700)
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    os.unlink(entry.path)
    for place in reversed(emptied):
        os.rmdir(place)
