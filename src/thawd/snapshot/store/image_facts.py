"""Facts about an image that thawd can find without reading the image: its sidecar, and the state of its files.

A sidecar is a JSON document beside each image; this module defines its format. This module also decides whether an
image and its sidecar can be used. It writes sidecars and changes nothing else. `thawd.snapshot.store.folder` uses this
module, and the commands `thawd snapshot` show the results.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd.snapshot.store.trust_and_locks import distrust
from thawd.system import folders

IMAGE = ".img"
SIDECAR = ".json"
DISK = ".disk"
FILES = ".files"
PARTS = (IMAGE, SIDECAR, DISK, FILES)
"""Suffixes of an image's file and of its parts. All their names begin with the image's SHA-256."""

_DIGEST_DIGITS = 64
_SIDECAR_LAYOUT = 1
_SIDECAR_MAX_BYTES = 1 << 20


class ImageOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of an image, as its publisher describes it.

    Attributes:
        function: name of the function.
        version: qualifier of the version, for example ``3``.
        key: digest of all inputs of the frozen process; a freeze with the same key would make an equivalent image.
        python: version of the function's interpreter, for example ``3.12.1``.
        init_ms: duration of the init phase, milliseconds.
        freeze_ms: duration of the freeze, milliseconds.
        data_bytes: size of the memory pages in the image, bytes.
        self_test: ``passed``, or the reason why the self-test was not run.
        self_test_ms: duration of the self-test, milliseconds; None when it was not run.
        base: SHA-256 of the image that this image refers to; None: it refers to no other image.
        base_refused: why the image was made without a base; empty if it has a base, or needs none.
        fork_refused: why environments must not be forked from a thawed copy; None when they can be.
        dropped: connections that are closed in each thawed copy; None if the publisher did not record them.
        container_image: digest of the manifest of the container image that the process has as its root; empty: the
            process sees the machine's files.
        container_image_name: the container image, as the function's configuration names it.
        first_use: first byte and end of each range of the image that a copy read until its first answer, in the order
            of the ranges. A hint for machines on which the image arrives while it is used; empty: not known.
    """

    function: str
    version: str
    key: str
    python: str
    init_ms: float
    freeze_ms: float
    data_bytes: int
    self_test: str
    self_test_ms: float | None = None
    base: str | None = None
    base_refused: str = ""
    fork_refused: str | None = None
    dropped: list[str] | None = None
    container_image: str = ""
    container_image_name: str = ""
    first_use: list[tuple[int, int]] = []


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """The document beside an image.

    The modification time (mtime) of the sidecar's file is the time of the snapshot's last use. So thawd records a use
    without writing to a file.

    Attributes:
        layout: version of this format.
        sha256: SHA-256 of the image, 64 hexadecimal digits.
        image_bytes: size of the image, holes included.
        parts_bytes: disk space of the image's disk snapshot; 0 when it has none.
        created_unix_s: when the image was put into the store.
        boot_id: id of the kernel's boot during which the image was made.
        kernel: release of the kernel on which the image was made.
        thawd: version of thawd that made the image.
        origin: the function and process that were frozen.
        sent_as: SHA-256 of the image where it was made, if it was made on another machine; empty: it was made here.
    """

    layout: int = _SIDECAR_LAYOUT
    sha256: str
    image_bytes: int
    parts_bytes: int
    created_unix_s: float
    boot_id: str
    kernel: str
    thawd: str
    origin: ImageOrigin
    sent_as: str = ""


class _Layout(msgspec.Struct):
    layout: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One image in the store, in the state in which it was last examined.

    Attributes:
        sha256: SHA-256 of the image, taken from its name; 64 hexadecimal digits.
        path: absolute path of the image, which is never written to.
        sidecar: the image's sidecar; None when it cannot be read or trusted.
        stored_bytes: disk space of the image and its parts.
        last_used_unix_s: when the image was stored, or a lease on it last began or ended.
        in_use: whether a process holds a lease on the image.
        problem: why the image must not be used, and what to do; None when it can be used.
    """

    sha256: str
    path: Path
    sidecar: Sidecar | None
    stored_bytes: int
    last_used_unix_s: float
    in_use: bool
    problem: str | None

    @property
    def id(self) -> str:
        """The first 12 digits of the SHA-256, as commands show them."""
        return self.sha256[:12]

    @property
    def name(self) -> str:
        """Name and version of the function, for example ``classify:3``; the id when they are unknown."""
        return f"{self.sidecar.origin.function}:{self.sidecar.origin.version}" if self.sidecar else self.id

    @property
    def base(self) -> str | None:
        """SHA-256 of the image that this image refers to; None when there is none or it is unknown."""
        return None if self.sidecar is None else self.sidecar.origin.base

    @property
    def disk(self) -> Path | None:
        """The folder with the disk snapshot, which is never written to; None when there is none."""
        return self._part(DISK)

    @property
    def files(self) -> Path | None:
        """The list of files that the snapshot depends on (`file_lists`); None when there is none."""
        return self._part(FILES)

    def _part(self, suffix: str) -> Path | None:
        path = self.path.with_suffix(suffix)
        return path if path.exists() else None


def digest_in(name: str, *, suffixes: tuple[str, ...] = PARTS) -> str | None:
    """The SHA-256 in a file's name; None for a name that the store does not give to files."""
    stem, dot, ending = name.partition(".")
    if dot + ending not in suffixes or len(stem) != _DIGEST_DIGITS or set(stem) - set("0123456789abcdef"):
        return None
    return stem


def write_sidecar(path: Path, sidecar: Sidecar) -> None:
    """Write a sidecar to a new file.

    Raises:
        OSError: the file cannot be written.
    """
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(sidecar)) + b"\n")
    folders.sync(path)


def look(image: Path, *, in_use: bool) -> Snapshot | None:
    """Examine the image at a path; None when it does not exist.

    Args:
        image: path of the image, whose name must have the form that the store uses.
        in_use: whether a process holds a lease on the image.

    Raises:
        OSError: the folder cannot be searched.
    """
    try:
        status = image.lstat()
    except FileNotFoundError:
        return None
    sidecar, problem, used_unix_s = _read_sidecar(image.with_suffix(SIDECAR), sha256=image.stem)
    problem = distrust(image, status) or problem
    if problem is None and sidecar is not None and status.st_size != sidecar.image_bytes:
        problem = f"{image} has {status.st_size:,} bytes, but had {sidecar.image_bytes:,} when it was made"
    if problem is not None:
        problem += f". The snapshot is not used; remove it: thawd snapshot rm {image.stem[:12]}"
    return Snapshot(
        sha256=image.stem,
        path=image,
        sidecar=sidecar,
        stored_bytes=status.st_blocks * 512 + (sidecar.parts_bytes if sidecar else 0),
        last_used_unix_s=status.st_mtime if used_unix_s is None else used_unix_s,
        in_use=in_use,
        problem=problem,
    )


def _read_sidecar(path: Path, *, sha256: str) -> tuple[Sidecar | None, str | None, float | None]:
    """The sidecar, the problem with it, and its modification time in Unix seconds; each may be None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if (problem := distrust(path, status)) is not None:
                return None, problem, None
            content = os.read(fd, _SIDECAR_MAX_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        return None, f"{path}, which describes the image, cannot be read: {error.strerror}", None
    try:
        layout = msgspec.json.decode(content, type=_Layout).layout
        if layout != _SIDECAR_LAYOUT:
            return None, f"{path} has layout {layout}, but this thawd reads layout {_SIDECAR_LAYOUT}", status.st_mtime
        sidecar = msgspec.json.decode(content, type=Sidecar)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, f"{path}, which describes the image, is damaged: {error}", status.st_mtime
    if sidecar.sha256 != sha256:
        return None, f"{path} describes another image, {sidecar.sha256[:12]}", status.st_mtime
    return sidecar, None, status.st_mtime
