"""Walks a bucket's folder and compares it with the catalog, in chunks, on a thread, to find the keys to check.

The walk also removes unfinished objects, whose writing was interrupted by a power cut or by the end of a function's
process. However many files there are, memory contains only one chunk of keys and the names of folders that wait to be
walked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from thawd.sources.buckets.files import is_same
from thawd.stores.objects.catalog import ObjectRecord
from thawd.stores.objects.folder import BucketFolder
from thawd.system import folders as system_folders

CHUNK_KEYS = 500

Report = Callable[[bytes, OSError], None]


def walk(
    root: bytes, prefix: bytes, *, enter: Callable[[bytes], object], report: Report, chunk_keys: int = CHUNK_KEYS
) -> Iterator[list[bytes]]:
    """Yield the keys of the files and links in and below the folder `prefix`, in chunks.

    Args:
        root: the bucket's folder.
        prefix: folder to start with, relative to the root; empty: the root.
        enter: called with each folder before it is read, so that a watch that `enter` sets misses no file.
        report: called with a folder that cannot be read, and the error; a missing folder is skipped silently.
        chunk_keys: most keys in a chunk.

    Raises:
        OSError: the root itself cannot be read.
    """
    folders = [prefix]
    chunk: list[bytes] = []
    while folders:
        folder = folders.pop()
        enter(folder)
        base = folder + b"/" if folder else b""
        try:
            for name, is_folder in _entries(root + b"/" + folder if folder else root):
                if is_folder:
                    folders.append(base + name)
                    continue
                chunk.append(base + name)
                if len(chunk) >= chunk_keys:
                    yield chunk
                    chunk = []
        except OSError as error:
            if not folder:
                raise
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                report(folder, error)
    if chunk:
        yield chunk


def _entries(path: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield each name in a folder, and whether it is a folder. Hidden names, devices and pipes are skipped.

    Links are not followed. Unfinished objects whose writers were killed are removed.
    """
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                if system_folders.is_unfinished(entry.name):
                    system_folders.remove_unlocked(entry.path)
                continue
            if entry.is_dir(follow_symlinks=False):
                yield entry.name, True
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                yield entry.name, False


def differing(
    root: bytes, keys: Sequence[bytes], known: Mapping[bytes, ObjectRecord], *, report: Report
) -> list[bytes]:
    """Return those of `keys` for which the file differs from its record: it is new, changed or removed."""
    folder = BucketFolder(root)
    found = []
    for key in keys:
        record = known.get(key)
        try:
            located = folder.locate(key)
        except OSError as error:
            report(key, error)
            continue
        if located is None:
            if record is not None:
                found.append(key)
        elif record is None or not is_same(located.stat, record):
            found.append(key)
    return found
