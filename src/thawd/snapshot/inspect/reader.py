"""Reads images, the files with frozen processes: for ``thawd snapshot inspect`` and ``verify``, and to check new ones.

`read` turns a file into an `Image`. It trusts no value in the file: an `Image` can be used without further checks, and
a file that breaks a rule raises an `ImageError`. This module shares no code with ``native/``, which writes images, and
never changes a file. Standard library only, Python 3.9 and later.

This module does not check the contents of pages. `SnapshotStore.verify` does: a stored image has the SHA-256 of its
whole file as its name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from thawd.snapshot.inspect import format_rules, layout
from thawd.snapshot.inspect.description import describe
from thawd.snapshot.inspect.records import (
    Descriptor,
    EpollWatch,
    File,
    HostKey,
    Image,
    ImageError,
    MemoryObject,
    Operation,
    ProcessFacts,
    Ring,
    SignalAction,
    Socket,
    SocketOption,
    Thread,
)
from thawd.snapshot.inspect.report import text

__all__ = ["TABLES_LIMIT_BYTES", "Image", "ImageError", "describe", "read", "text"]

# The tables of a process with the largest possible number of mappings need far less. The limit keeps a damaged count
# from exhausting memory.
TABLES_LIMIT_BYTES = 64 << 20

_ALIGNMENT = 8
_DAMAGED = "The image is damaged: remove it and freeze again."


def read(path: str | os.PathLike[str]) -> Image:
    """Read and check an image. Takes about 10 ms for each 1,000 records.

    Raises:
        ImageError: the file cannot be read, is not an image, has another layout or architecture, is cut off or
            damaged; the text says what is wrong, where, and what to do.
    """
    name = os.fspath(path)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"{name}: cannot be opened: {reason}. Check the path and the file's permissions.") from error
    try:
        return _read(fd, name)
    except OSError as error:
        raise ImageError(f"{name}: cannot be read: {error.strerror}. Check the disk that holds the file.") from error
    except format_rules.DamageError as error:
        raise ImageError(f"{name}: {error}. {_DAMAGED}") from None
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from None
    finally:
        os.close(fd)


def _read(fd: int, name: str) -> Image:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("is not a regular file, so it cannot be an image. Give the path of an image.")
    header = _header(_pread(fd, layout.PAGE_BYTES, 0), status.st_size)
    tables = _Tables(fd, header)
    facts = header["process"]
    facts["working_folder"] = tables.path(facts["working_folder"], "the process's working folder")
    facts["more_groups"] = tables.string(facts["more_groups"], "the process's groups")
    image = Image(
        path=name,
        mode=stat.S_IMODE(status.st_mode),
        owner=status.st_uid,
        file_bytes=status.st_size,
        disk_bytes=status.st_blocks * 512,
        layout=header["layout"],
        architecture=layout.ARCHITECTURES[header["architecture"]],
        flags=format_rules.names(header["flags"], layout.IMAGE_FLAGS, "header: flags"),
        data_offset=header["data_offset"],
        anonymous_offset=header["anonymous_offset"],
        tables_bytes=tables.size_bytes,
        host=_host(header["host"], tables.string(header["glibc"], "header: glibc")),
        process=ProcessFacts(**facts),
        operations=tuple(_operation(raw, where) for raw, where in tables.records("operations")),
        threads=tuple(_thread(raw, where) for raw, where in tables.records("threads")),
        files=tuple(_file(raw, where, tables) for raw, where in tables.records("files")),
        objects=tuple(_object(raw, where, tables) for raw, where in tables.records("objects")),
        descriptors=tuple(_descriptor(raw, where) for raw, where in tables.records("descriptors")),
        epoll=tuple(_epoll(raw, where) for raw, where in tables.records("epoll")),
        sockets=tuple(_socket(raw, where) for raw, where in tables.records("sockets")),
        options=tuple(_option(raw, where) for raw, where in tables.records("options")),
        rings=tuple(Ring(**raw) for raw, _ in tables.records("rings")),
        signals=tuple(SignalAction(**raw) for raw, _ in tables.records("signals")),
        words=tuple(tables.pairs("words")),
        vdso=tables.section("vdso"),
    )
    format_rules.check(image)
    return image


def _pread(fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes, or fewer if the file ends earlier."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)


def _header(page: bytes, file_bytes: int) -> dict[str, Any]:
    """Read the header from the file's first page, and check that this module can read the image.

    The magic bytes and the layout's number are checked first, because every layout has them at the same place; then the
    checksum; then the other fields. So messages about the other fields never quote a number from a damaged header.
    """
    magic = page[: len(layout.MAGIC)]
    if magic != layout.MAGIC[: len(magic)]:
        raise ImageError("is not an image: it does not begin with THAWDIMG. Give the path of an image.")
    size = layout.size_of("image_header")
    if len(page) < size:
        raise format_rules.DamageError(f"is cut off: {file_bytes} bytes, but the header alone takes {size}")
    header = layout.unpack("image_header", page[:size])
    if header["layout"] != layout.LAYOUT:
        raise ImageError(
            f"has image layout {header['layout']}, but this thawd reads layout {layout.LAYOUT}. Freeze again."
        )
    place = next(field for field in layout.fields("image_header") if field.name == "header_checksum")
    zeroed = page[: place.offset] + bytes(place.size_bytes) + page[place.offset + place.size_bytes : size]
    if layout.checksum(zeroed) != header["header_checksum"]:
        raise format_rules.DamageError("header: its checksum does not match")
    if any(page[size:]):
        raise format_rules.DamageError(f"header: the rest of its page, from byte {size} on, is not zero")
    if header["architecture"] != layout.ARCHITECTURE_X86_64:
        found = layout.ARCHITECTURES.get(header["architecture"], "unknown")
        raise ImageError(
            f"is an image of architecture {header['architecture']} ({found}), but this thawd reads "
            f"{layout.ARCHITECTURE_X86_64} (x86-64). Use it on the machine where it was frozen, or freeze again."
        )
    if header["file_bytes"] != file_bytes:
        how = "is cut off" if file_bytes < header["file_bytes"] else "has grown"
        raise format_rules.DamageError(f"{how}: {file_bytes} bytes, but its header says {header['file_bytes']}")
    return header


class _Tables:
    """The sections of an image; their places and their checksum have been checked.

    Attributes:
        size_bytes: number of bytes from the end of the header's page to the end of the last section.
    """

    def __init__(self, fd: int, header: dict[str, Any]) -> None:
        self._places = dict(zip(layout.SECTIONS, header["sections"]))  # noqa: B905 - `strict` came with Python 3.10
        end = self._check_places(header["data_offset"], header["file_bytes"])
        self.size_bytes = end - layout.PAGE_BYTES
        if self.size_bytes > TABLES_LIMIT_BYTES:
            raise format_rules.DamageError(f"its tables take {self.size_bytes} bytes, more than {TABLES_LIMIT_BYTES}")
        self._data = _pread(fd, self.size_bytes, layout.PAGE_BYTES)
        if layout.checksum(self._data) != header["tables_checksum"]:
            raise format_rules.DamageError("tables: their checksum does not match")
        self._strings = self.section("strings")
        if not self._strings.endswith(b"\0"):
            raise format_rules.DamageError("section strings: its last string has no end (NUL)")

    def _check_places(self, data_offset: int, file_bytes: int) -> int:
        """Check that the sections follow each other between header and pages; returns the end of the last section."""
        end = layout.PAGE_BYTES
        for name, place in self._places.items():
            where = f"section {name}"
            struct = layout.RECORDS.get(name)
            record_bytes = layout.size_of(struct) if struct else 1
            if place["record_bytes"] != record_bytes:
                raise format_rules.DamageError(
                    f"{where}: has records of {place['record_bytes']} bytes instead of {record_bytes}"
                )
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            if place["offset"] != start:
                raise format_rules.DamageError(f"{where}: begins at byte {place['offset']} instead of {start}")
            end = start + place["count"] * record_bytes
        if data_offset % layout.PAGE_BYTES or not end <= data_offset <= file_bytes:
            raise format_rules.DamageError(
                f"header: pages begin at byte {data_offset}, which is not a multiple of {layout.PAGE_BYTES} between "
                f"the end of the tables, {end}, and the end of the file, {file_bytes}"
            )
        return end

    def section(self, name: str) -> bytes:
        """All bytes of a section."""
        place = self._places[name]
        start = place["offset"] - layout.PAGE_BYTES
        return self._data[start : start + place["count"] * place["record_bytes"]]

    def records(self, name: str) -> Iterator[tuple[dict[str, Any], str]]:
        """The records of a section, each with the text that names it in error messages."""
        for index, raw in enumerate(layout.unpack_all(layout.RECORDS[name], self.section(name))):
            reserved = raw.pop("reserved", 0)
            if reserved:
                raise format_rules.DamageError(
                    f"section {name}, record {index}: its reserved field is {reserved}, not 0"
                )
            yield raw, f"section {name}, record {index}"

    def pairs(self, name: str) -> Iterator[tuple[int, int]]:
        """The records of a section with two numbers each; there may be tens of thousands."""
        return layout.unpack_pairs(layout.RECORDS[name], self.section(name))

    def string(self, offset: int, where: str) -> str:
        """The string at `offset` in the section of strings; `where` names the record that refers to the string."""
        if offset >= len(self._strings):
            raise format_rules.DamageError(
                f"{where}: its string is at {offset}, but the section of strings has {len(self._strings)} bytes"
            )
        # The section ends with a NUL, so `index` finds one.
        raw = self._strings[offset : self._strings.index(b"\0", offset)]
        return raw.decode("utf-8", "surrogateescape")

    def path(self, offset: int, where: str) -> str:
        """The string at `offset`, which must be an absolute path; see `string`."""
        path = self.string(offset, where)
        if not path.startswith("/"):
            raise format_rules.DamageError(f"{where}: {path!r} is not an absolute path")
        return path


def _text(raw: bytes, where: str) -> str:
    """Decode the text in a field of fixed size, up to its NUL."""
    value, end, _ = raw.partition(b"\0")
    if not end:
        raise format_rules.DamageError(f"{where}: has no end: none of its {len(raw)} bytes is NUL")
    return value.decode("utf-8", "surrogateescape")


def _host(raw: dict[str, Any], glibc: str) -> HostKey:
    texts = {name: _text(value, f"host key: {name}") for name, value in raw.items() if isinstance(value, bytes)}
    return HostKey(**{**raw, **texts, "glibc": glibc})


def _operation(raw: dict[str, Any], where: str) -> Operation:
    kind = format_rules.kind(raw["kind"], layout.OPERATION_KINDS, where)
    granted = format_rules.names(raw["protection"], layout.PROTECTION, f"{where}: protection")
    return Operation(
        address=raw["address"],
        length=raw["length"],
        offset=raw["offset"],
        kind=kind,
        index=None if raw["index"] == layout.NO_INDEX else raw["index"],
        protection="".join(
            name[0].replace("e", "x") if name in granted else "-" for name in layout.PROTECTION.values()
        ),
        flags=format_rules.names(raw["flags"], layout.OPERATION_FLAGS, f"{where}: flags"),
        advice=format_rules.names(raw["advice"], layout.ADVICE, f"{where}: advice"),
    )


def _thread(raw: dict[str, Any], where: str) -> Thread:
    return Thread(**{**raw, "name": _text(raw["name"], f"{where}: name")})


def _file(raw: dict[str, Any], where: str, tables: _Tables) -> File:
    path = tables.path(raw["path"], where)
    return File(**{**raw, "path": path, "checked": format_rules.yes_or_no(raw["checked"], f"{where}: checked")})


def _object(raw: dict[str, Any], where: str, tables: _Tables) -> MemoryObject:
    seals = format_rules.names(raw["seals"], layout.SEALS, f"{where}: seals")
    return MemoryObject(**{**raw, "name": tables.string(raw["name"], where), "seals": seals})


def _descriptor(raw: dict[str, Any], where: str) -> Descriptor:
    kind = format_rules.kind(raw["kind"], layout.DESCRIPTOR_KINDS, where)
    close_on_exec = format_rules.yes_or_no(raw["close_on_exec"], f"{where}: close_on_exec")
    return Descriptor(**{**raw, "kind": kind, "close_on_exec": close_on_exec})


def _epoll(raw: dict[str, Any], _where: str) -> EpollWatch:
    return EpollWatch(**raw)


def _socket(raw: dict[str, Any], where: str) -> Socket:
    addresses = {}
    for name in ("local", "peer"):
        size = raw.pop(f"{name}_bytes")
        if size > layout.SOCKET_ADDRESS_BYTES:
            raise format_rules.DamageError(
                f"{where}: has an address of {size} bytes, more than {layout.SOCKET_ADDRESS_BYTES}"
            )
        addresses[name] = raw[name][:size]
    revival = format_rules.kind(raw["revival"], layout.SOCKET_REVIVALS, where)
    return Socket(
        **{
            **raw,
            **addresses,
            "revival": revival,
            "any_port": format_rules.yes_or_no(raw["any_port"], f"{where}: any_port"),
        }
    )


def _option(raw: dict[str, Any], where: str) -> SocketOption:
    if raw["bytes"] > layout.SOCKET_OPTION_BYTES:
        raise format_rules.DamageError(
            f"{where}: has an option of {raw['bytes']} bytes, more than {layout.SOCKET_OPTION_BYTES}"
        )
    return SocketOption(raw["level"], raw["name"], raw["value"][: raw["bytes"]])
