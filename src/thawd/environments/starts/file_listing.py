"""Lists the files that a new image depends on, so that the snapshot can be sent to another machine.

The frozen process leaves the stamps of the files that init read beside its image. The image itself names the files that
the process had mapped or open. `thawd.snapshot.store.file_lists` describes the list. A process with a root of its own
reaches one folder of the store, the outbox; what passes through it is here, too. All functions block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from thawd.environments.starts.template import FreezeFailedError, Template
from thawd.environments.version import Version
from thawd.errors import ThawdError
from thawd.snapshot.disk.root_mounts import OUTBOX
from thawd.snapshot.inspect.records import Image
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.file_lists import IN_DISK, LIST_MAX_BYTES, Stamp
from thawd.snapshot.store.image_facts import Snapshot
from thawd.snapshot.store.images import Draft
from thawd.snapshot.store.trust_and_locks import open_as_is

_STAMPS = ".stamps"
_IMAGE = OUTBOX / "image"


class Arrival(Protocol):
    """A snapshot whose image arrives while copies of it run; `thawd.transfer.arriving_snapshots` implements it.

    Attributes:
        snapshot: the snapshot. Its image must not be read or mapped.
        image_fd: descriptor of the file that copies map.
    """

    snapshot: Snapshot
    image_fd: int

    def listen(self, on_failure: Callable[[str], object]) -> str:
        """Set what is called in any thread when contents cannot be had; returns why, if that is so already."""

    async def whole(self) -> Snapshot:
        """Wait until the image is in the store. Raises StoreError if it cannot be put there."""

    def release(self) -> None:
        """Start no more copies; running copies still get what they need."""


class Exchange(Protocol):
    """Shares snapshots with other machines; `thawd.transfer.exchange` implements it. Neither method raises an error."""

    async def receive(self, function: str, key: str) -> bool | Arrival:
        """Put the image with this key into the store, if another machine has sent it; returns whether.

        If the image still arrives, what is returned is the snapshot, which can be used already.
        """

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
    folder, places, mounts = template.folder, version.places, version.root
    own = () if folder is None else tuple(f"{path}/" for path in (folder.path, folder.tmp) if path is not None)

    def find(path: str) -> str:
        for root in own:
            if path.startswith(root):
                return IN_DISK + path.removeprefix(root)
        if mounts is not None:
            real = str(mounts.real(Path(path)))
        else:
            real = path if places is None else str(places.real(Path(path)))
        return real if real != path else ""

    return find


def files_elsewhere(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a probe's argument: the list of files of a snapshot that was made on another machine; else nothing."""
    if snapshot.sidecar is None or not snapshot.sidecar.sent_as or snapshot.files is None:
        return ()
    return (str(snapshot.files),)


def are_files_unchanged(snapshot: Snapshot) -> bool:
    """Return whether the files that a received snapshot depends on are those that were found when it was received."""
    if snapshot.files is None:
        return False
    try:
        listed = file_lists.decode(snapshot.files.read_bytes(), where=snapshot.files)
        return file_lists.unchanged(listed.files, disk=snapshot.disk)
    except (OSError, ThawdError):
        return False


def take_from_outbox(draft: Draft) -> None:
    """Move the image, and the stamps of files, out of the folder that the frozen process can write to.

    Raises:
        FreezeFailedError: the process has put something else there.
    """
    written = draft.folder / OUTBOX.name / _IMAGE.name
    try:
        if not stat.S_ISREG(written.lstat().st_mode):
            raise FreezeFailedError("the function replaced its image by something that is not a file")
        written.rename(draft.image)
    except OSError as error:
        raise FreezeFailedError(f"the image could not be taken over: {error}") from error
    with contextlib.suppress(OSError):  # without them, the snapshot only cannot be sent
        written.with_name(written.name + _STAMPS).rename(draft.image.with_name(draft.image.name + _STAMPS))


def lend_list(draft: Draft, listed: str) -> tuple[Path, tuple[str, ...]]:
    """Copy a list of files to where a probe with a root of its own can read it.

    Returns:
        The folder to mount at `OUTBOX`, and the probe's argument.

    Raises:
        OSError: the list cannot be copied.
    """
    outbox = draft.folder / OUTBOX.name
    outbox.mkdir(mode=0o700)
    shutil.copy(listed, outbox / "files")
    return outbox, (str(OUTBOX / "files"),)
