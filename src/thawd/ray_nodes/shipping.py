"""Packs the folder of a project for Ray's nodes. Ray keeps the package, and unpacks it on each node.

The same files give the same bytes, so that agents are replaced only if something has changed. The project is in a
folder of the package: Ray lets Python search the package itself for modules, where a file such as ``queue.py`` of the
project would replace a module of Python.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from thawd.errors import ThawdError
from thawd.ray_nodes.options import PROJECT

MOST_BYTES = 100 << 20
"""The highest sum of the sizes of the files. Ray keeps packages in the memory of its head node."""
_LEFT_OUT = frozenset({".thawd", ".git", ".venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache"})


class PackageError(ThawdError):
    """The project cannot be sent to the nodes; the message says what to do."""


def pack(folder: Path, target: Path) -> None:
    """Write a zip file with the files of a project.

    Args:
        folder: the project's folder.
        target: the zip file.

    Raises:
        PackageError: the project is too large, or a link leads out of it.
        OSError: a file cannot be read, or the zip file cannot be written.
    """
    total = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        for path in _files(folder):
            total += path.stat().st_size
            if total > MOST_BYTES:
                raise PackageError(
                    f"{folder} has more than {MOST_BYTES >> 20} MiB; put it on each node, for example in the image of "
                    "its container, and name its folder there with --folder. Models belong into an object store"
                )
            if not path.resolve().is_relative_to(folder.resolve()):
                raise PackageError(f"{path} is a link to a file outside of {folder}; copy the file into the folder")
            info = zipfile.ZipInfo(f"{PROJECT}/{path.relative_to(folder)}")
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o700 if os.access(path, os.X_OK) else 0o600)) << 16
            package.writestr(info, path.read_bytes())


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name in _LEFT_OUT:
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _files(entry)
        elif entry.is_file():
            yield entry
        elif entry.is_dir():
            raise PackageError(f"{entry} is a link to a folder; copy the folder")
