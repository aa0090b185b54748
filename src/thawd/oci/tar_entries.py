"""Reads the entries of a layer's tar file, which is not trusted, and refuses entries that could do harm.

The standard library's `tarfile` parses the headers (ustar, pax, GNU long names, sparse files). It is used as a parser
only: it never creates a file. This module limits what one header may consume, the number of entries and the size of
their contents, checks each path, and makes every failure an `ImageError` that names the entry.
"""

from __future__ import annotations

import enum
import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from thawd.errors import ImageError
from thawd.oci.compression import LayerStream

_HEADER_BYTES = 4 << 20  # for one entry: headers, pax records, the map of a sparse file
_USUAL_HEADER_BYTES = 2048
_GLOBAL_BYTES = 64 << 10  # of all global headers together, which are kept and copied for each entry
_PADDING_BYTES = 16 << 20  # a writer of tapes fills up a block
_READ_BYTES = 64 << 10
UNREADABLE = (tarfile.TarError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError, EOFError)
"""Exceptions that `tarfile` raises for invalid headers, its own included."""

_HEADERS_WITH_CONTENT = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_NO_ID = (1 << 32) - 1
_LONGEST_PATH_BYTES = 4095  # PATH_MAX less its NUL


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a layer.

    Attributes:
        bytes: contents of the files, holes of sparse files included.
        entries: number of entries, and of folders that only paths of entries name.
    """

    bytes: int = 32 << 30
    entries: int = 2_000_000

    @property
    def stream_bytes(self) -> int:
        """Size of the whole uncompressed layer: contents, headers, and the padding behind them."""
        return self.bytes + self.entries * _USUAL_HEADER_BYTES + _PADDING_BYTES


class Kind(enum.Enum):
    """The kind of an entry."""

    FOLDER = enum.auto()
    FILE = enum.auto()
    SYMLINK = enum.auto()
    HARD_LINK = enum.auto()
    DEVICE = enum.auto()


class Content:
    """The content of a file in a tar file.

    Args:
        file: the file, as `tarfile` opens it.
        what: names the layer in messages.
    """

    def __init__(self, file: IO[bytes], what: str) -> None:
        self._file = file
        self._what = what

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end. Raises ImageError if the tar file ends before that."""
        try:
            return self._file.read(size)
        except UNREADABLE as error:
            raise _unreadable(self._what, error) from None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a layer.

    Attributes:
        parts: components of the path, none of them ``.``, ``..`` or empty; empty for the root folder itself.
        kind: the kind of the entry. FIFOs are treated as devices.
        mode: permissions, with the set-id and sticky bits.
        mtime_s: time of the last change, seconds since 1970.
        link: target of a symbolic link as written; path of a hard link's target, relative to the root.
        content: the file's content, to be read before the next entry; None for other kinds.
        size: size of the content, bytes.
        sparse: whether the content has holes.
        uid: owner; 0 to 2**32 - 2.
        gid: owning group.
    """

    parts: tuple[str, ...]
    kind: Kind
    mode: int
    mtime_s: float
    link: str = ""
    content: Content | None = None
    size: int = 0
    sparse: bool = False
    uid: int = 0
    gid: int = 0

    @property
    def path(self) -> str:
        """The path, relative to the root."""
        return "/".join(self.parts)


class LayerReader:
    """The entries of one layer, and the digest of its uncompressed bytes.

    Args:
        stream: the uncompressed tar file.
        what: names the layer in messages.
        limits: what the layer may consume.
    """

    def __init__(self, stream: LayerStream, what: str, limits: Limits) -> None:
        self._source = _Source(stream, what, limits.stream_bytes)
        self._what = what
        self._limits = limits

    def entries(self) -> Iterator[Entry]:
        """Yield the entries in their order. Raises ImageError if one cannot be used, or the tar file is broken."""
        count = total = 0
        try:
            with tarfile.open(
                fileobj=cast(IO[bytes], self._source), mode="r|", tarinfo=StrictInfo, bufsize=_READ_BYTES
            ) as tar:
                while True:
                    self._source.allow(_HEADER_BYTES)
                    info = tar.next()
                    if info is None:
                        break
                    tar.members.clear()  # type: ignore[attr-defined]  # it keeps all headers otherwise
                    count += 1
                    total += info.size if info.isreg() else 0
                    self._check_limits(count, total)
                    self._source.allow(None)
                    yield from self._entry(tar, info)
        except UNREADABLE as error:
            raise _unreadable(self._what, error) from None

    def digest(self) -> str:
        """Read to the end, and return the digest of all uncompressed bytes."""
        self._source.allow(None)
        while self._source.read(1 << 20):
            pass
        return f"sha256:{self._source.hashed.hexdigest()}"

    def _check_limits(self, count: int, total: int) -> None:
        if count > self._limits.entries:
            raise ImageError(f"{self._what}: it has more than {self._limits.entries:,} entries")
        if total > self._limits.bytes:
            raise ImageError(f"{self._what}: its files have more than {self._limits.bytes:,} bytes")

    def _entry(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[Entry]:
        parts = self._parts(info.name, f"the entry {info.name!r}")
        uid, gid = (number if 0 <= number < _NO_ID else 0 for number in (info.uid, info.gid))
        if info.isdir():
            yield Entry(parts, Kind.FOLDER, info.mode, info.mtime, uid=uid, gid=gid)
        elif info.issym():
            if "\0" in info.linkname or not info.linkname:
                raise ImageError(f"{self._what}: the entry {info.name!r} is a link to {info.linkname!r}")
            yield Entry(parts, Kind.SYMLINK, info.mode, info.mtime, info.linkname, uid=uid, gid=gid)
        elif info.islnk():
            target = self._parts(info.linkname.lstrip("/"), f"the hard link {info.name!r} to {info.linkname!r}")
            yield Entry(parts, Kind.HARD_LINK, info.mode, info.mtime, "/".join(target))
        elif info.isreg():
            file = tar.extractfile(info)
            assert file is not None
            content = Content(file, self._what)
            sparse = info.sparse is not None
            yield Entry(parts, Kind.FILE, info.mode, info.mtime, "", content, info.size, sparse, uid, gid)
            while content.read(1 << 20):  # what the caller left: the next header is behind it
                pass
        elif info.isdev():
            yield Entry(parts, Kind.DEVICE, info.mode, info.mtime)
        else:
            raise ImageError(f"{self._what}: the entry {info.name!r} has the unknown type {info.type!r}")

    def _parts(self, name: str, entry: str) -> tuple[str, ...]:
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if name.startswith("/") or ".." in parts:
            raise ImageError(f"{self._what}: {entry} would leave the image's folder; it is refused")
        if "\0" in name or len(name.encode(errors="surrogateescape")) > _LONGEST_PATH_BYTES:
            raise ImageError(f"{self._what}: {entry[:200]} has a name that no file can have")
        return parts


class StrictInfo(tarfile.TarInfo):
    """A header that `tarfile` would take for the end of the file, that has a negative size, or that is large.

    Each is an error. `tarfile` reads pax headers and long names into memory, and keeps the records of global headers.
    """

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Any:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _HEADERS_WITH_CONTENT and info.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header has {info.size:,} bytes; at most {_HEADER_BYTES:,} are read")
        return info

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Any:
        try:
            info = super().fromtarfile(tar)
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined]
            raise  # the end, with and without its blocks of zeros
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if info.size < 0 or any(start < 0 or size < 0 for start, size in _filled(info)):
            raise tarfile.ReadError(f"the entry {info.name!r} has a negative size")
        kept = sum(len(name) + len(value) for name, value in tar.pax_headers.items())
        if kept > _GLOBAL_BYTES:
            raise tarfile.ReadError(f"its global headers have more than {_GLOBAL_BYTES:,} bytes")
        return info


class _Source:
    """The file that `tarfile` reads: hashes all bytes, and ends with an error when an allowance is used up.

    Args:
        stream: the uncompressed layer.
        what: names the layer in messages.
        most_bytes: largest size of the layer.
    """

    def __init__(self, stream: LayerStream, what: str, most_bytes: int) -> None:
        self.hashed = hashlib.sha256()
        self._stream = stream
        self._what = what
        self._most_bytes = self._left_of_layer = most_bytes
        self._left: int | None = _HEADER_BYTES  # `tarfile` reads the first header when it is opened

    def allow(self, size: int | None) -> None:
        self._left = size

    def read(self, size: int) -> bytes:
        if self._left is not None:
            if self._left <= 0:
                raise ImageError(f"{self._what}: the header of one entry has more than {_HEADER_BYTES:,} bytes")
            self._left -= size
        chunk = self._stream.read(size)
        self._left_of_layer -= len(chunk)
        if self._left_of_layer < 0:
            raise ImageError(f"{self._what}: uncompressed it has more than {self._most_bytes:,} bytes")
        self.hashed.update(chunk)
        return chunk


def _filled(info: tarfile.TarInfo) -> list[tuple[int, int]]:
    """The parts of a sparse file that have content, as offsets and sizes in bytes."""
    return cast("list[tuple[int, int]]", info.sparse or [])


def _unreadable(what: str, error: BaseException) -> ImageError:
    return ImageError(f"{what}: it is not a tar file that can be read: {str(error) or type(error).__name__}")
