"""How items of tables are stored in DynamoDB. Pure; the standard library only, with Python 3.9.

The fields of an item that DynamoDB can hold are stored as attributes, so that people can read them in the console and
other programs can query them. DynamoDB keeps neither the order of fields nor the notation of numbers, so the item's
text is stored too, in the attribute ``_json``, and this text is returned. If the attributes and the text together could
exceed DynamoDB's size limit, only the text is stored, compressed. If another program wrote an item without ``_json``,
the returned item is made from its attributes.

This file is also part of the layer with which handlers use ``thawd.table`` on AWS.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

Attribute = dict[str, Any]
"""A value in the form of DynamoDB's API, a type and a content, for example ``{"N": "0.50"}``."""

EXACT = "_json"
"""The attribute that contains the item's text."""

# Source: DynamoDB developer guide, "Constraints": item size, number precision and range, nesting depth.
_MAX_ITEM_BYTES = 400 * 1024
_MAX_DIGITS, _LEAST_EXPONENT, _MOST_EXPONENT = 38, -130, 125
_MAX_DEPTH = 30
# A safety margin, because DynamoDB documents only roughly how it counts sizes.
_SIZE_MARGIN_BYTES = 4096


class _Number(str):
    """A JSON number in its original notation."""


class _NoAttribute(Exception):
    """A value that DynamoDB cannot store as an attribute."""


def to_attributes(key_name: str, key: str, text: str) -> dict[str, Attribute]:
    """The DynamoDB attributes for the item `text` (a JSON object) under `key`; `key_name` names the partition key."""
    item: dict[str, Attribute] = {key_name: {"S": key}, EXACT: {"S": text}}
    for name, value in _fields(text).items():
        with contextlib.suppress(_NoAttribute):
            _require_name(name)
            if name not in item:
                item[name] = _attribute(value, 0)
    if sum(_name_bytes(name) + _value_bytes(value) for name, value in item.items()) > (
        _MAX_ITEM_BYTES - _SIZE_MARGIN_BYTES
    ):
        return {key_name: {"S": key}, EXACT: {"B": zlib.compress(text.encode(), 9)}}
    return item


def _fields(text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text, parse_float=_Number, parse_int=_Number)
    except RecursionError:
        return {}  # nested more deeply than attributes can be
    return fields


def from_attributes(key_name: str, item: dict[str, Attribute]) -> tuple[str, bytes]:
    """Key and item, from the DynamoDB attributes."""
    key: str = item[key_name]["S"]
    exact = item.get(EXACT, {})
    if "S" in exact:
        return key, exact["S"].encode()
    if "B" in exact:
        with contextlib.suppress(zlib.error):
            return key, zlib.decompress(exact["B"])
    fields = ((name, value) for name, value in item.items() if name != key_name)
    return key, ("{" + ", ".join(f"{json.dumps(name)}: {_json(value)}" for name, value in fields) + "}").encode()


def _attribute(value: Any, depth: int) -> Attribute:
    """A value as an attribute.

    Raises:
        _NoAttribute: DynamoDB cannot store the value as an attribute.
    """
    if depth > _MAX_DEPTH:
        raise _NoAttribute
    if isinstance(value, _Number):
        return {"N": str(value)} if _is_storable(value) else {"S": str(value)}
    if isinstance(value, bool):
        return {"BOOL": value}
    if value is None:
        return {"NULL": True}
    if isinstance(value, str):
        return {"S": _require_text(value)}
    if isinstance(value, list):
        return {"L": [_attribute(entry, depth + 1) for entry in value]}
    return {"M": {_require_name(name): _attribute(entry, depth + 1) for name, entry in value.items()}}


def _is_storable(number: str) -> bool:
    try:
        _, digits, exponent = Decimal(number).as_tuple()
    except ArithmeticError:
        return False  # the exponent is too large for Decimal
    assert isinstance(exponent, int)
    significant = len("".join(map(str, digits)).strip("0"))
    adjusted = exponent + len(digits) - 1
    return not any(digits) or (significant <= _MAX_DIGITS and _LEAST_EXPONENT <= adjusted <= _MOST_EXPONENT)


def _require_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NoAttribute from None
    return text


def _require_name(name: str) -> str:
    if not name:
        raise _NoAttribute
    return _require_text(name)


def _name_bytes(name: str) -> int:
    return len(name.encode())


def _value_bytes(value: Attribute) -> int:
    """How many bytes DynamoDB counts for an attribute's value. Source: developer guide, "Item sizes and formats"."""
    ((kind, held),) = value.items()
    if kind == "S":
        return len(held.encode())
    if kind == "N":
        return len(held) // 2 + 3
    if kind == "L":
        return 3 + sum(1 + _value_bytes(entry) for entry in held)
    if kind == "M":
        return 3 + sum(1 + _name_bytes(name) + _value_bytes(entry) for name, entry in held.items())
    return 1


def _json(value: Attribute) -> str:
    """A value that another program stored, as JSON text: numbers unchanged, sets as lists, bytes in Base64."""
    ((kind, held),) = value.items()
    return "".join(_json_parts(kind, held))


def _json_parts(kind: str, held: Any) -> Iterator[str]:
    if kind == "N":
        yield str(held)
    elif kind in ("L", "SS", "NS", "BS"):
        entries = held if kind == "L" else [{kind[0]: entry} for entry in held]
        yield "[" + ", ".join(map(_json, entries)) + "]"
    elif kind == "M":
        yield "{" + ", ".join(f"{json.dumps(name)}: {_json(entry)}" for name, entry in held.items()) + "}"
    elif kind == "B":
        yield json.dumps(base64.b64encode(held).decode())
    elif kind == "NULL":
        yield "null"
    else:
        yield json.dumps(held)
