"""The folder of a bucket: a key is a path within the folder. Decides which files are objects, and which are accessible.

Only this module contains these rules. `thawd.sources.buckets`, which looks at files, and `thawd.gateway`, which writes
them, use it. Keys and paths are bytes, because file names need not be valid text.
"""
# os.path is used, because pathlib does not accept bytes.
# ruff: noqa: PTH116, PTH118, PTH120

from __future__ import annotations

import os
import stat
from typing import NamedTuple

STAGING = b".thawd-staging"
"""Folder within a bucket in which the platform writes objects before it gives them their names."""
MAX_KEY_BYTES = 1024
"""Source: Amazon S3 user guide, "Naming Amazon S3 objects"."""


class LocatedFile(NamedTuple):
    """A file that is an object: its path with links resolved, and its stat."""

    path: bytes
    stat: os.stat_result


class BucketFolder:
    """The folder of a bucket.

    It remembers which folders are not links, and would not notice that a folder is replaced with a link later. So use
    it for one batch of keys only; making a new one takes little time.

    Args:
        root: the folder.
    """

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._real_root = os.path.realpath(root)
        self._real: dict[bytes, bool] = {}

    def locate(self, key: bytes) -> LocatedFile | None:
        """The object under `key`: a regular file, or a link to one in the same bucket.

        Returns:
            None when there is no accessible object. Not accessible are folders, devices, pipes, links that lead outside
            the bucket or to a hidden file (see `is_hidden`), and everything in a linked folder.

        Raises:
            OSError: the file's stat cannot be read, for example because a folder is not accessible.
        """
        path = self.path(key)
        if path is None:
            return None
        try:
            found = os.stat(path, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                path = os.path.realpath(path)
                if not self._is_reachable(path):
                    return None
                found = os.stat(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return LocatedFile(path, found) if stat.S_ISREG(found.st_mode) else None

    def path(self, key: bytes) -> bytes | None:
        """The path of `key`, whether the file exists or not; None when the path to its folder contains a link."""
        parent = os.path.dirname(key)
        if parent and not self._is_real(parent):
            return None
        return os.path.join(self.root, key)

    def _is_real(self, parent: bytes) -> bool:
        known = self._real.get(parent)
        if known is None:
            path = os.path.join(self._real_root, parent)
            known = self._real[parent] = os.path.realpath(path) == path
        return known

    def _is_reachable(self, target: bytes) -> bool:
        inside = os.path.join(self._real_root, b"")
        return target.startswith(inside) and not is_hidden(target[len(inside) :])


def is_hidden(key: bytes) -> bool:
    """Whether a component of the key begins with a dot. Such files are not objects."""
    return key.startswith(b".") or b"/." in key
