"""Encodes and decodes CBOR, as far as AWS's protocol ``rpc-v2-cbor`` uses it. No side effects.

Values are None, bool, int, float, str, bytes, list, dict with texts as keys, and `Timestamp`.

Source: RFC 8949; Smithy RPC v2 CBOR protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_MAX_DEPTH = 32
_MAX_ITEMS = 1_000_000
_BREAK = object()
_FLOATS = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
_SIMPLE = {20: False, 21: True, 22: None, 23: None}
_TIME_TAG = 1


class Timestamp(float):
    """A point in time, seconds since 1970."""


class CborError(ValueError):
    """Bytes are not CBOR that is supported; the message says why."""


def encode(value: Any) -> bytes:
    """Encode a value.

    Raises:
        CborError: a value of another type.
    """
    return b"".join(_encoded(value))


def _encoded(value: Any) -> Iterator[bytes]:
    if value is None or isinstance(value, bool):
        yield b"\xf6" if value is None else b"\xf5" if value else b"\xf4"
    elif isinstance(value, Timestamp):
        yield b"\xc1" + struct.pack(">Bd", 0xFB, value)
    elif isinstance(value, int):
        yield _head(0, value) if value >= 0 else _head(1, -1 - value)
    elif isinstance(value, float):
        yield struct.pack(">Bd", 0xFB, value)
    elif isinstance(value, (str, bytes)):
        data = value.encode() if isinstance(value, str) else value
        yield _head(3 if isinstance(value, str) else 2, len(data)) + data
    elif isinstance(value, (list, tuple)):
        yield _head(4, len(value))
        for item in value:
            yield from _encoded(item)
    elif isinstance(value, dict):
        yield _head(5, len(value))
        for key, item in value.items():
            yield from _encoded(key)
            yield from _encoded(item)
    else:
        raise CborError(f"a {type(value).__name__} cannot be encoded")


def _head(major: int, number: int) -> bytes:
    first = major << 5
    if number < 24:
        return bytes([first | number])
    for code, (form, most) in enumerate((("B", 0xFF), ("H", 0xFFFF), ("I", 0xFFFF_FFFF), ("Q", (1 << 64) - 1)), 24):
        if number <= most:
            return bytes([first | code]) + struct.pack(f">{form}", number)
    raise CborError("a number is too large")


def decode(data: bytes) -> Any:
    """Decode one value.

    Raises:
        CborError: the bytes are something else.
    """
    decoder = _Decoder(data)
    try:
        value = decoder.value(0)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise CborError(f"not CBOR: {error}") from None
    if decoder.at != len(data) or value is _BREAK:
        raise CborError("there are bytes after the value")
    return value


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._items = 0

    def value(self, depth: int) -> Any:
        self._items += 1
        if depth > _MAX_DEPTH or self._items > _MAX_ITEMS:
            raise CborError("the value is nested too deeply or has too many items")
        first = self._data[self.at]
        self.at += 1
        major, info = first >> 5, first & 31
        if major == 7:
            return self._simple(info)
        length = None if info == 31 and 2 <= major <= 5 else self._number(info)
        if major in (0, 1):
            assert length is not None
            return length if major == 0 else -1 - length
        if major in (2, 3):
            data = self._string(major, length, depth)
            return data.decode() if major == 3 else data
        if major == 6:
            inner = self.value(depth + 1)
            return Timestamp(inner) if length == _TIME_TAG and isinstance(inner, (int, float)) else inner
        return self._list(length, depth) if major == 4 else self._map(length, depth)

    def _number(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise CborError("not CBOR: a length is not valid")
        size = 1 << (info - 24)
        data = self._bytes(size)
        return int.from_bytes(data, "big")

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise CborError("not CBOR: it ends too early")
        self.at += size
        return self._data[self.at - size : self.at]

    def _string(self, major: int, length: int | None, depth: int) -> bytes:
        if length is not None:
            return self._bytes(length)
        parts: list[bytes] = []
        while (part := self.value(depth + 1)) is not _BREAK:
            if not isinstance(part, str if major == 3 else bytes):
                raise CborError("not CBOR: a string has a part of another type")
            parts.append(part.encode() if isinstance(part, str) else part)
        return b"".join(parts)

    def _list(self, length: int | None, depth: int) -> list[Any]:
        found: list[Any] = []
        while length is None or len(found) < length:
            item = self.value(depth + 1)
            if item is _BREAK:
                if length is not None:
                    raise CborError("not CBOR: a list ends too early")
                break
            found.append(item)
        return found

    def _map(self, length: int | None, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        read = 0
        while length is None or read < length:
            key = self.value(depth + 1)
            if key is _BREAK and length is None:
                break
            item = self.value(depth + 1)
            if not isinstance(key, str) or item is _BREAK:
                raise CborError("not CBOR: a map has a key that is no text, or ends too early")
            found[key] = item
            read += 1
        return found

    def _simple(self, info: int) -> Any:
        if info == 31:
            return _BREAK
        if info in _FLOATS:
            form, size = _FLOATS[info]
            (number,) = struct.unpack(form, self._bytes(size))
            return number
        if info in _SIMPLE:
            return _SIMPLE[info]
        raise CborError("not CBOR: an unknown simple value")
