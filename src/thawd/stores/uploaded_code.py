"""Stores uploaded code: the zip files, and the packages unpacked from them, both named by the zip file's SHA-256.

A package with many files is used before it is on the disk, because that may take seconds. Until then its folder has
the sticky bit. A later process does not use such a folder, which may lack files after a power cut: it unpacks the zip
file again.

A zip file is untrusted data. It is refused if a name or link in it leads outside the package's folder, or if its files
are larger than allowed after unpacking. Nothing of a refused zip file remains on the disk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import lzma
import os
import shutil
import stat
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from thawd.errors import InvalidParameterValueException, StoreError
from thawd.stores.trees import storing
from thawd.system import folders, threads

# Source: Lambda quotas, "Deployment package (.zip file archive) size".
MAX_ZIP_BYTES = 52_428_800
MAX_UNZIPPED_BYTES = 262_144_000
_CANNOT_UNZIP = "Could not unzip uploaded file. Please check your file, then try to upload again."
_CHUNK_BYTES = 1 << 20
_UNFINISHED = ".new-"
# Most links that one link may lead through, as in the kernel (path_resolution(7)).
_DEEPEST_LINKS = 40
_LONGEST_NAME, _LONGEST_PATH = 255, 2048
# How long to keep a package that no function or layer uses yet, seconds.
_RECENT_S = 600.0
# With more files than this, a package is used before it is on the disk.
_MANY_FILES = 256
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Code:
    """A zip file that was uploaded.

    Attributes:
        sha256: SHA-256 of the zip file, Base64, as AWS shows it.
        size_bytes: size of the zip file.
        name: name of its package, 64 hexadecimal digits.
        unzipped_bytes: sum of the sizes of its files.
    """

    sha256: str
    size_bytes: int
    name: str
    unzipped_bytes: int


class CodeStore:
    """Zip files in ``code`` and their packages in ``packages``, both under the data folder.

    Args:
        data: the data folder.
        most_bytes: returns the most bytes that a package may have.
    """

    def __init__(self, data: Path, *, most_bytes: Callable[[], int] = lambda: MAX_UNZIPPED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._zips = data / "code"
        self._packages = data / "packages"
        self._recent: dict[str, float] = {}
        # Packages that this object has unpacked, and can use while they have the sticky bit.
        self._fresh: set[str] = set()
        self._installing = threading.Lock()
        self._executor = threads.pool(1, name="code")
        self._syncing = threads.pool(1, name="code sync")

    def zip_path(self, name: str) -> Path:
        """The zip file of a package."""
        return self._zips / f"{name}.zip"

    def package_path(self, name: str) -> Path:
        """The folder of a package."""
        return self._packages / name

    async def add(self, content: bytes) -> Code:
        """Store a zip file and its package, unless they exist. A single thread does this for one zip file at a time.

        Args:
            content: the zip file.

        Raises:
            InvalidParameterValueException: the zip file cannot be unpacked, is unsafe or too large (400).
            StoreError: the zip file or its package cannot be stored (500).
            StoreFullError: the disk is full (503).
        """
        if not content:
            raise InvalidParameterValueException("Uploaded file must be a non-empty zip")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._add, content)

    def begin(self, content: bytes) -> None:
        """Begin to do what `add` does, in the background. Errors are left to `add`. May be called in any thread."""
        self._executor.submit(self._add, content)

    def _add(self, content: bytes) -> Code:
        digest = hashlib.sha256(content)
        name = digest.hexdigest()
        self._recent[name] = time.monotonic()
        unzipped_bytes = self._unpack(content, name)
        with storing(self._zips):
            folders.make(self._zips, mode=0o700)
            if self.zip_path(name).exists():
                folders.sync(self._zips)
            else:
                with folders.replacing(self.zip_path(name)) as file:
                    file.write(content)
        return Code(base64.b64encode(digest.digest()).decode(), len(content), name, unzipped_bytes)

    def ensure(self, name: str) -> Path:
        """The folder of a package. If it is missing, it is unpacked from the zip file again. Blocks.

        Raises:
            StoreError: both the folder and the zip file are missing, or the folder cannot be new_path (500).
        """
        folder = self.package_path(name)
        if not self._is_whole(name):
            try:
                content = self.zip_path(name).read_bytes()
            except OSError as error:
                raise StoreError(
                    f"{self.zip_path(name)} cannot be read: {error.strerror}; upload the code again"
                ) from error
            self._unpack(content, name)
        return folder

    def recent(self) -> set[str]:
        """Names of packages added in the last ten minutes: their functions and layers are perhaps not stored yet."""
        oldest = time.monotonic() - _RECENT_S
        self._recent = {name: at for name, at in self._recent.items() if at >= oldest}
        return set(self._recent)

    async def remove_except(self, keep: Callable[[], set[str]]) -> None:
        """Remove zip files, except those of the packages that `keep` names; `keep` is called again for each zip file.

        Raises:
            StoreError: the folder cannot be read or new_path (500).
        """
        await asyncio.get_running_loop().run_in_executor(self._executor, self._remove_except, keep)

    def _remove_except(self, keep: Callable[[], set[str]]) -> None:
        # This runs in the only thread that adds packages, so no zip file is half-new_path at this time.
        with storing(self._zips):
            for path in list(self._zips.iterdir()) if self._zips.exists() else []:
                if path.stem not in keep():
                    path.unlink(missing_ok=True)

    def _unpack(self, content: bytes, name: str) -> int:
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members = list(_members(archive))
                total, most_bytes = sum(info.file_size for info, _ in members), self._most_bytes()
                if total > most_bytes:
                    raise _too_large(most_bytes)
                if not members:
                    raise InvalidParameterValueException("Uploaded file must be a non-empty zip")
                with self._installing:  # functions with the same code need its package at the same time
                    if not self._is_whole(name):
                        self._install(archive, members, name, most_bytes)
                return total
        except _UNREADABLE:
            raise InvalidParameterValueException(_CANNOT_UNZIP) from None

    def _is_whole(self, name: str) -> bool:
        """Return whether a package exists, and another process has not left it unsynced."""
        try:
            mode = self.package_path(name).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not mode & stat.S_ISVTX or name in self._fresh

    def _install(
        self, archive: zipfile.ZipFile, members: list[tuple[zipfile.ZipInfo, str]], name: str, most_bytes: int
    ) -> None:
        with storing(self._packages):
            self._packages.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.package_path(name).is_dir():  # another process has left it unsynced
                shutil.rmtree(self.package_path(name))
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._packages))
            try:
                target = unfinished / "package"
                target.mkdir(mode=0o1755 if len(members) > _MANY_FILES else 0o755)
                is_synced_later = bool(target.stat().st_mode & stat.S_ISVTX)  # not every file system has the bit
                _extract_all(archive, members, target, most_bytes)
                if is_synced_later:
                    self._fresh.add(name)
                else:
                    folders.sync_all(target)
                try:
                    target.rename(self.package_path(name))
                except OSError:
                    if not self.package_path(name).is_dir():  # if it exists, another process installed it
                        raise
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        if is_synced_later:
            with contextlib.suppress(OSError):
                folder = os.open(self.package_path(name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._syncing.submit(self._settle, folder)

    def _settle(self, folder: int) -> None:
        """Sync a package, then take the sticky bit off. If that fails, the next process unpacks the package again.

        Args:
            folder: a descriptor of its folder, because the path may be that of another one meanwhile. It is closed.
        """
        try:
            os.sync()  # one call is faster than one for each file
            os.fchmod(folder, os.fstat(folder).st_mode & 0o777)
        finally:
            os.close(folder)


def _too_large(most_bytes: int) -> InvalidParameterValueException:
    return InvalidParameterValueException(f"Unzipped size must be smaller than {most_bytes} bytes")


def _unsafe(name: str, why: str) -> InvalidParameterValueException:
    return InvalidParameterValueException(f"{_CANNOT_UNZIP} ({name!r} {why})")


def _members(archive: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    """Files and links of a zip file, each with its path in the package.

    Raises:
        InvalidParameterValueException: a name leads outside the folder or is too long, a file is encrypted, or a file
            has the name of a folder in the zip file (400).
    """
    files: set[str] = set()
    folders_seen: set[str] = set()
    for info in archive.infolist():
        name = info.filename.replace("\\", "/")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        path = "/".join(parts)
        if name.startswith("/") or ".." in parts or "\0" in info.orig_filename:
            raise _unsafe(info.filename, "leads outside the folder")
        if info.flag_bits & 1:
            raise _unsafe(info.filename, "is encrypted")
        if len(path) > _LONGEST_PATH or any(len(os.fsencode(part)) > _LONGEST_NAME for part in parts):
            raise _unsafe(info.filename[:100], "has a name that is too long")
        if info.is_dir() or not parts:
            continue
        folder = path.rpartition("/")[0]
        while folder and folder not in folders_seen:
            if folder in files:
                raise _unsafe(info.filename, "is in a folder that has the name of a file in the zip file")
            folders_seen.add(folder)
            folder = folder.rpartition("/")[0]
        if path in folders_seen:
            raise _unsafe(info.filename, "is a file and a folder")
        files.add(path)
        yield info, path


def _extract_all(
    archive: zipfile.ZipFile, members: list[tuple[zipfile.ZipInfo, str]], target: Path, most_bytes: int
) -> None:
    left = most_bytes
    links: dict[str, str] = {}
    root, made = str(target), {str(target)}
    for info, path in members:
        if stat.S_ISLNK(info.external_attr >> 16):
            links[path] = archive.read(info).decode("utf-8", "surrogateescape") if info.file_size < 4096 else "/"
            continue
        new_path = f"{root}/{path}"
        folder = new_path.rpartition("/")[0]
        if folder not in made:
            Path(folder).mkdir(parents=True, exist_ok=True)
            made.add(folder)
        left = _extract(archive, info, new_path, left, most_bytes)
    # Links are created last, so that no file is ever created through a link.
    for path, points_to in links.items():
        if not _stays_inside(path, points_to, links):
            raise _unsafe(path, "is a link that leads outside the folder")
        link = target / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(points_to)


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, new_path: str, left: int, most_bytes: int) -> int:
    """Write one file; returns how many bytes may still be unpacked.

    The bytes are counted, because the size that the zip file states may be wrong.
    """
    mode = (info.external_attr >> 16) & 0o777
    file = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with archive.open(info) as source:
            while chunk := _read(source):
                left -= len(chunk)
                if left < 0:
                    raise _too_large(most_bytes)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(file, rest) :]
        os.fchmod(file, (mode or 0o644) | 0o444)
    finally:
        os.close(file)
    return left


def _read(source: IO[bytes]) -> bytes:
    try:
        return source.read(_CHUNK_BYTES)
    except OSError as error:  # bzip2 reports damaged data with this exception
        raise zipfile.BadZipFile(str(error)) from None


def _above(path: str) -> Iterator[str]:
    """The folders that a path is in, from the outermost one on, and the path itself."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
    yield path


def _stays_inside(link: str, points_to: str, links: dict[str, str]) -> bool:
    """Whether a link leads to a path inside the folder, directly or through other links."""
    for _ in range(_DEEPEST_LINKS):
        if points_to.startswith("/") or "\0" in points_to or not points_to:
            return False
        reached = os.path.normpath(os.path.join(os.path.dirname(link), points_to))  # noqa: PTH118, PTH120
        if reached == ".." or reached.startswith("../"):
            return False
        through = next((folder for folder in _above(reached) if folder in links), None)
        if through is None:
            return True
        if through == link:
            return False
        link, points_to = through, links[through] + reached[len(through) :]
    return False
