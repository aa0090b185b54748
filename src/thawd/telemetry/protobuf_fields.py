"""Encodes fields of protobuf messages.

A message is a row of fields: a varint with the field's number and wire type, then its value.
Source: Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import struct

_FIXED64 = struct.Struct("<Q").pack
_DOUBLE = struct.Struct("<d").pack


def text(field: int, value: str) -> bytes:
    """Return a field with a text."""
    return message(field, value.encode())


def message(field: int, content: bytes) -> bytes:
    """Return a field with bytes, or with another message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def integer(field: int, value: int) -> bytes:
    """Return a field with a number from 0, a truth value or a member of an enumeration."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    """Return a field with a number of 64 bits."""
    return varint(field << 3 | 1) + _DOUBLE(value)


def fixed64(field: int, value: int) -> bytes:
    """Return a field with a number from 0 that has a fixed length of eight bytes."""
    return varint(field << 3 | 1) + _FIXED64(value)


def varint(value: int) -> bytes:
    """Return a number from 0 in groups of seven bits, the lowest group first."""
    if value < 0x80:
        return _SHORT[value]
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_SHORT = [bytes((value,)) for value in range(0x80)]
