"""Merges the files of several layers into one folder, as Lambda unpacks them all into ``/opt``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path


def merge(layers: Sequence[Path], target: Path) -> None:
    """Copy the files of `layers` into the folder `target`. Blocks.

    A file, link or folder of a later layer replaces what an earlier one has at the same path; the files of folders at
    the same path are merged.

    Args:
        layers: folders of the layers, in order.
        target: an empty folder.

    Raises:
        OSError: a file cannot be read or written.
    """
    for layer in layers:
        for folder, folders, names in os.walk(layer):
            into = target / Path(folder).relative_to(layer)
            for name in folders:
                source, copy = Path(folder, name), into / name
                if source.is_symlink():
                    _replace(source, copy)
                elif not copy.is_dir() or copy.is_symlink():
                    _remove(copy)
                    copy.mkdir()
            for name in names:
                _replace(Path(folder, name), into / name)


def _replace(source: Path, copy: Path) -> None:
    _remove(copy)
    shutil.copy2(source, copy, follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
