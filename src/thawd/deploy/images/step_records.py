"""Remembers which layer each step of a build made, for the next build with the same step.

    build/KEY        digests of the layer as JSON, written when the layer is in the store; its mtime is its last use

If the layer of a record no longer exists, the step is carried out again. So is a step that copied files of this machine
of which one has changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from thawd.oci.documents import Descriptor
from thawd.oci.image_store import Images
from thawd.oci.layer_writing import Layer, NewEntry, write_layer
from thawd.system import folders

_KEPT_S = 7 * 86_400.0


class _Record(msgspec.Struct):
    """A step's layer.

    Attributes:
        blob: the layer; None: the step changed no file.
        diff_id: digest of the uncompressed layer.
        sources: files of this machine that the layer was made from: path, size in bytes, and modification time in
            nanoseconds since 1970.
    """

    blob: Descriptor | None
    diff_id: str
    sources: list[tuple[str, int, int]] = []


class StepRecords:
    """The records of a store.

    Args:
        images: the store.
        use_cache: whether layers of earlier builds are taken.
        on_line: called with each line of progress.
    """

    def __init__(self, images: Images, *, use_cache: bool, on_line: Callable[[str], None]) -> None:
        self._images = images
        self._folder = images.folder / "build"
        self._use_cache = use_cache
        self._on_line = on_line

    def layer(
        self,
        key: str,
        make: Callable[[], Mapping[str, NewEntry]],
        *,
        check: Callable[[], None] = lambda: None,
        of_machine: bool = False,
    ) -> Layer | None:
        """Return the layer of a step: of an earlier build, or a new one.

        Args:
            key: digest of the step with all that it depends on.
            make: carries out the step, and returns the entries of its layer.
            check: called when a new layer has been written, before it is recorded; raises if the key is not its own.
            of_machine: whether the layer has files of this machine that the key does not depend on.

        Returns:
            The layer; None if the step changes no file.
        """
        path = self._folder / key
        record = _read(path) if self._use_cache else None
        if record is not None and self._is_usable(record):
            os.utime(path)
            self._on_line("  from an earlier build")
            return None if record.blob is None else Layer(record.blob, record.diff_id)
        entries = make()
        sources = _sources(entries) if of_machine else []
        layer = write_layer(self._images.blobs, entries) if entries else None
        check()
        folders.make(self._folder, mode=0o700)
        with folders.replacing(path) as file:
            file.write(
                msgspec.json.encode(_Record(layer.blob if layer else None, layer.diff_id if layer else "", sources))
            )
        return layer

    def _is_usable(self, record: _Record) -> bool:
        if record.blob is not None and not self._images.blobs.has(record.blob.digest):
            return False
        return all(_state(path) == (size, modified_ns) for path, size, modified_ns in record.sources)


def recent(images: Images) -> list[str]:
    """Return the digests of the layers that builds of the last week used, and forget the others."""
    found: list[str] = []
    folder = images.folder / "build"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        record = _read(path)
        if record is None or time.time() - path.stat().st_mtime > _KEPT_S:
            path.unlink(missing_ok=True)
        elif record.blob is not None:
            found.append(record.blob.digest)
    return found


def _sources(entries: Mapping[str, NewEntry]) -> list[tuple[str, int, int]]:
    files = sorted({str(each.content) for each in entries.values() if isinstance(each.content, Path)})
    return [(path, *state) for path in files if (state := _state(path)) is not None]


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of files
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _read(path: Path) -> _Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Record)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
