"""Items: the files, links and empty folders of archives. Lists the items of code folders."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.deploy.packages import elf
from thawd.deploy.packages.targets import PackageError

# Limit of the kernel and of zip files' readers; limits.h, PATH_MAX.
_LONGEST_PATH_BYTES = 4095
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file, a link or an empty folder of an archive.

    Attributes:
        path: path within the archive, with slashes.
        source: the file with the item's bytes, whose symbolic links are not followed.
        size_bytes: size of the file; 0 for a link or folder.
        mode: type and permissions, as in ``st_mode``. Permissions are 0o644 or 0o755.
        content: the file's bytes if they are not those of `source`, or the target of a link.
        is_cut: whether the file consists of the first `size_bytes` of an ELF file; see `elf.cut`.
    """

    path: str
    source: Path
    size_bytes: int
    mode: int
    content: bytes | None = None
    is_cut: bool = False

    @property
    def is_file(self) -> bool:
        """Whether the item is a regular file."""
        return stat.S_ISREG(self.mode)

    def read(self) -> bytes:
        """Return the bytes of a file, the target of a link, or nothing for a folder."""
        if self.content is not None:
            return self.content
        if self.is_cut:
            with self.source.open("rb") as file:
                return elf.cut(file.read(self.size_bytes))
        return self.source.read_bytes() if self.is_file else b""

    def chunks(self) -> Iterator[bytes]:
        """Yield what `read` returns in parts of at most 1 MiB, so that a large file needs little memory.

        Raises:
            OSError: the file cannot be read, or no longer has the size that it had.
        """
        if self.content is not None or not self.is_file:
            yield self.read()
            return
        left = self.size_bytes
        with self.source.open("rb") as file:
            while left > 0:
                if not (chunk := file.read(min(_CHUNK_BYTES, left))):
                    break
                # The header that `elf.cut` changes is in the first chunk.
                yield elf.cut(chunk) if self.is_cut and left == self.size_bytes else chunk
                left -= len(chunk)
            if left > 0 or (not self.is_cut and file.read(1)):
                raise OSError(errno.EIO, "the file has changed since its size was read", str(self.source))

    def moved(self, prefix: str) -> Item:
        """Return the item below another folder of the archive."""
        return replace(self, path=prefix + self.path)

    def with_content(self, content: bytes) -> Item:
        """Return the item with other bytes."""
        return replace(self, content=content, size_bytes=len(content))


def items_of(folder: Path) -> list[Item]:
    """Return the items of a folder, sorted by path. No other process may change the folder. Blocks.

    Raises:
        PackageError: a name cannot be stored in a zip file.
    """
    return sorted(_walk(folder, ""), key=lambda item: item.path)


def _walk(folder: Path, prefix: str) -> Iterator[Item]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = prefix + entry.name
        _check_name(path)
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            inner = list(_walk(Path(entry.path), path + "/"))
            yield from inner or [Item(path=path, source=Path(entry.path), size_bytes=0, mode=stat.S_IFDIR | 0o755)]
        elif stat.S_ISLNK(status.st_mode):
            target = os.fsencode(Path(entry.path).readlink())
            yield Item(path=path, source=Path(entry.path), size_bytes=0, mode=stat.S_IFLNK | 0o777, content=target)
        elif stat.S_ISREG(status.st_mode):
            mode = stat.S_IFREG | (0o755 if status.st_mode & 0o111 else 0o644)
            yield Item(path=path, source=Path(entry.path), size_bytes=status.st_size, mode=mode)


def _check_name(path: str) -> None:
    """Raise `PackageError` if programs that unpack zip files would change the name `path`."""
    shown = os.fsencode(path).decode(errors="replace")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise PackageError(
            f"{shown!r} is a name that is not UTF-8, which a zip file cannot contain; rename it"
        ) from None
    if "\\" in path or not path.isprintable():
        raise PackageError(
            f"{shown!r} has a backslash or a control character in its name, which readers of zip files change; "
            "rename it"
        )
    if len(encoded) > _LONGEST_PATH_BYTES:
        raise PackageError(f"{shown[:80]!r}... is longer than {_LONGEST_PATH_BYTES} bytes; shorten it")
