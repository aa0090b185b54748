"""Lists the files that a new image depends on, so that the snapshot can be sent to another machine.

The frozen process leaves the stamps of the files that init read beside its image. The image itself names the files that
the process had mapped or open. `thawd.snapshot.store.file_lists` describes the list. All functions block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from thawd.environments.starts.template import Template
from thawd.environments.version import Version
from thawd.snapshot.inspect.records import Image
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.file_lists import IN_DISK, LIST_MAX_BYTES, Stamp
from thawd.snapshot.store.image_facts import Snapshot
from thawd.snapshot.store.images import Draft
from thawd.snapshot.store.trust_and_locks import open_as_is

_STAMPS = ".stamps"


class Exchange(Protocol):
    """Shares snapshots with other machines; `thawd.transfer.exchange` implements it. Neither method raises an error."""

    def receive(self, function: str, key: str) -> bool:
        """Put the image with this key into the store, if another machine has sent it; returns whether. Blocks."""

    def send(self, snapshot: Snapshot) -> None:
        """Send a new snapshot to other machines, later."""


def list_files(version: Version, template: Template, image: Image, draft: Draft) -> None:
    """Write the list of the files that the image depends on. Without it the snapshot cannot be sent elsewhere."""
    stamps = draft.image.with_name(draft.image.name + _STAMPS)
    try:
        with open_as_is(stamps) as fd:
            found = msgspec.json.decode(os.read(fd, LIST_MAX_BYTES), type=list[Stamp])
        draft.files.write_bytes(file_lists.encode(file_lists.listed(found, image, find=_finder(version, template))))
        draft.files.chmod(0o600)
    except (OSError, ValueError):
        draft.files.unlink(missing_ok=True)


def _finder(version: Version, template: Template) -> Callable[[str], str]:
    """Return a function that finds a file of the template's process on this machine; see `FileRecord.at`."""
    folder, places = template.folder, version.places
    own = () if folder is None else tuple(f"{path}/" for path in (folder.path, folder.tmp) if path is not None)

    def find(path: str) -> str:
        for root in own:
            if path.startswith(root):
                return IN_DISK + path.removeprefix(root)
        real = path if places is None else str(places.real(Path(path)))
        return real if real != path else ""

    return find


def files_elsewhere(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a probe's argument: the list of files of a snapshot that was made on another machine; else nothing."""
    if snapshot.sidecar is None or not snapshot.sidecar.sent_as or snapshot.files is None:
        return ()
    return (str(snapshot.files),)
