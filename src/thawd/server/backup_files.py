"""What backups have in common: files with checksums, and a folder that has its final name only when it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from thawd.errors import StoreError
from thawd.system import folders

MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20

Say = Callable[[str], None]


class FileSum(msgspec.Struct, frozen=True):
    """Size in bytes and SHA-256 checksum of a file in a backup."""

    size: int
    sha256: str


@contextlib.contextmanager
def staged_beside(folder: Path, sources: Iterable[Path]) -> Iterator[Path]:
    """Make a folder beside `folder` for the files of a backup. It gets the name of `folder` when the block has ended.

    If the block fails, the incomplete backup is removed.

    Args:
        folder: folder of the backup. Either it does not exist yet, or it is empty.
        sources: folders that are backed up; `folder` must not be in one of them.

    Raises:
        StoreError: `folder` cannot be used.
    """
    folder = folder.resolve()
    with explained(folder):
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"no backup can be written to {folder}: it is a file; name a new folder")
        if folder.is_dir() and any(folder.iterdir()):
            raise StoreError(
                f"no backup can be written to {folder}: it exists already and is not empty; name a new folder"
            )
    for source in sources:
        if folder.is_relative_to(source.resolve()):
            raise StoreError(
                f"no backup can be written to {folder}: it is inside {source}, which is backed up; name a folder "
                "outside of it"
            )
    staged = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        _begin(staged)
        yield staged
        with explained(staged):
            folders.sync_all(staged)
            if folder.exists():
                folder.rmdir()
            staged.rename(folder)
            folders.sync(folder.parent)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def _begin(staged: Path) -> None:
    with explained(staged):
        try:
            staged.mkdir(parents=True, mode=0o700)
        except PermissionError:
            parent = next(folder for folder in staged.parents if os.access(folder, os.F_OK))
            raise StoreError(
                f"this command (uid {os.geteuid()}) cannot write to {parent}, and must: a backup is written "
                f"beside its own folder, in {staged}, until it is complete"
            ) from None


def files_in(folder: Path) -> Iterator[Path]:
    """All files in a folder and the folders in it."""
    for base, _, names in os.walk(folder):
        for name in names:
            yield Path(base) / name


def sums_in(folder: Path) -> dict[str, FileSum]:
    """Sizes and checksums of all files in a folder, by their printable paths in it."""
    return {_printable(path.relative_to(folder)): _sum(path) for path in sorted(files_in(folder))}


def require_whole_files(folder: Path, wanted: Mapping[str, FileSum]) -> None:
    """Check files by reading them all.

    Raises:
        StoreError: one of `wanted` is missing or has another content.
    """
    present = {_printable(path.relative_to(folder)): path for path in files_in(folder)}
    for name, expected in wanted.items():
        if name not in present or _sum(present[name]) != expected:
            raise StoreError(f"nothing was restored: the file {name} in the backup {folder} is missing or damaged")


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)


def _printable(path: Path) -> str:
    """A path as text, with escapes where the name of a file is not Unicode."""
    return os.fsdecode(path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def _sum(path: Path) -> FileSum:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileSum(size, digest.hexdigest())


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of files into `StoreError`, which names the file, or `path` if the error names none."""
    try:
        yield
    except (OSError, shutil.Error) as error:
        raise StoreError(f"{getattr(error, 'filename', None) or path} cannot be read or written: {error}") from error
