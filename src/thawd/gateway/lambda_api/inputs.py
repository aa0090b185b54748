"""The Lambda API's operations and their inputs: finds a request's operation, and checks and converts the input.

The operations and the shapes (types) of their inputs are described in ``lambda_operations.json``, which
``tools/lambda_operations.py`` makes from the service model that AWS publishes. Error texts have AWS's wording. No side
effects.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, unquote

from thawd.errors import (
    InvalidRequestContentException,
    MethodNotAllowedException,
    ResourceNotFoundException,
    SerializationException,
    ValidationException,
)
from thawd.gateway.lambda_api.input_constraints import Shape, problems_of_members

# An error message names at most this many constraints that the input does not meet.
_MOST_SHOWN = 10
# An input may have at most this many levels of nesting.
_DEEPEST = 32
# Whole numbers have 64 bits: one less than this is the largest, and the negative of this the smallest.
_INTEGERS = 1 << 63
_LARGEST_DOUBLE = sys.float_info.max


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation.

    Attributes:
        name: for example ``CreateFunction``.
        method: HTTP method.
        path: pattern of the path; each group is a member of the input whose value is part of the path.
        fixed: query parameters that distinguish the operation from another one with the same path.
        status: HTTP status of its answer.
        members: the members of its input, by name.
    """

    name: str
    method: str
    path: re.Pattern[str]
    fixed: Mapping[str, list[str]]
    status: int
    members: Mapping[str, Shape]


@functools.cache
def operations() -> tuple[ApiOperation, ...]:
    """All operations; the first call reads them from the file.

    Operations with fixed query parameters come first, so that they are found before others with the same path.
    """
    text = resources.files("thawd.gateway.lambda_api").joinpath("lambda_operations.json").read_text(encoding="utf-8")
    found = []
    for name, facts in json.loads(text)["operations"].items():
        path, _, query = facts["path"].partition("?")
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
        fixed = parse_qs(query)
        found.append(
            ApiOperation(name, facts["method"], re.compile(pattern), fixed, facts["status"], facts["input"]["members"])
        )
    return tuple(sorted(found, key=lambda operation: not operation.fixed))


def find(method: str, raw_path: str, query: str) -> tuple[ApiOperation, dict[str, str]]:
    """The operation of a request, and the parameters in its path (members of its input), decoded.

    Raises:
        ResourceNotFoundException: no operation has this path (404).
        MethodNotAllowedException: operations have this path, but none of them has this method (405).
    """
    query_values = parse_qs(query, keep_blank_values=True)
    path = raw_path.rstrip("/")
    methods = set()
    for operation in operations():
        match = operation.path.fullmatch(path)
        if match is None or any(query_values.get(name) != value for name, value in operation.fixed.items()):
            continue
        if operation.method == method:
            return operation, {name: unquote(value) for name, value in match.groupdict().items()}
        methods.add(operation.method)
    if methods:
        allowed = sorted(methods)
        raise MethodNotAllowedException(f"{raw_path} accepts {', '.join(allowed)}, not {method}", allowed=allowed)
    raise ResourceNotFoundException(f"No operation of the Lambda API has the path {raw_path}")


def read(operation: ApiOperation, *, in_path: Mapping[str, str], query: str, body: bytes) -> dict[str, Any]:
    """The checked input of an operation, by member, without the members that the request leaves out.

    Args:
        operation: the operation that the request is for.
        in_path: the members that are part of the path, as `find` returns them.
        query: percent-encoded query string.
        body: JSON text, or empty.

    Raises:
        InvalidRequestContentException: the body is not JSON (400).
        SerializationException: a value has the wrong type (400).
        ValidationException: a value is out of its range, or missing (400).
    """
    query_values = parse_qs(query, keep_blank_values=True)
    document = _document(body)
    values: dict[str, Any] = {}
    for name, shape in operation.members.items():
        where = shape.get("location")
        if where == "uri":
            values[name] = _from_text(shape, in_path[shape["locationName"]])
        elif where == "querystring":
            texts = query_values.get(shape["locationName"])
            if texts is not None:
                values[name] = texts if shape["type"] == "list" else _from_text(shape, texts[-1])
        elif where is None and document.get(name) is not None:
            values[name] = _convert(shape, document[name], 0)
    _raise_if_any(problems_of_members(operation.members, values, ""))
    return values


def read_document(members: Mapping[str, Shape], document: Mapping[str, Any]) -> dict[str, Any]:
    """The checked input of an operation of another service, all of whose members are in one document.

    Args:
        members: the members of the input, by name.
        document: the input as it was sent, decoded.

    Raises:
        SerializationException: a value has the wrong type (400).
        ValidationException: a value is out of its range, or missing (400).
    """
    values: dict[str, Any] = {}
    for name, shape in members.items():
        if document.get(name) is not None:
            values[name] = _convert(shape, document[name], 0)
            _require_texts(shape, document[name])
    _raise_if_any(problems_of_members(members, values, ""))
    return values


def _require_texts(shape: Shape, value: Any) -> None:
    """Refuse numbers where texts belong, which other services than Lambda do not convert; `value` can be converted.

    Raises:
        SerializationException: there is such a number (400).
    """
    kind = shape["type"]
    if kind == "string" and value is not None and not isinstance(value, str):
        raise _wrong(value, "a String")
    if kind == "structure":
        for name, member in shape["members"].items():
            if value.get(name) is not None:
                _require_texts(member, value[name])
    elif kind in ("list", "map"):
        items, inner = (value, shape["member"]) if kind == "list" else (value.values(), shape["value"])
        for item in items:
            if item is not None:
                _require_texts(inner, item)


@functools.cache
def inputs(package: str, file: str) -> Mapping[str, Mapping[str, Shape]]:
    """The members of the inputs of another service's operations, by operation; the first call reads them from a file.

    Args:
        package: the package that contains the file.
        file: name of the file, which ``tools/lambda_operations.py`` makes.
    """
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    return {name: shape["members"] for name, shape in json.loads(text)["operations"].items()}


def check(name: str, values: Mapping[str, Any]) -> None:
    """Check some members of the input of the operation `name`.

    Raises:
        ValidationException: a value is out of its range (400).
    """
    (operation,) = (each for each in operations() if each.name == name)
    members = {member: operation.members[member] for member in values}
    _raise_if_any(problems_of_members(members, values, ""))


def _raise_if_any(found: Iterator[str]) -> None:
    problems = list(found)
    if problems:
        count = len(problems)
        raise ValidationException(
            f"{count} validation error{'' if count == 1 else 's'} detected: {'; '.join(problems[:_MOST_SHOWN])}"
        )


def _document(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestContentException(f"Could not parse request body into json: {error}") from None
    if not isinstance(document, dict):
        raise SerializationException("Start of structure or map found where not expected")
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _from_text(shape: Shape, text: str) -> Any:
    kind = shape["type"]
    if kind in ("integer", "long"):
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise SerializationException(f"{text!r} can not be converted to an {kind.title()}")
        return int(text)
    if kind == "boolean":
        return text.lower() == "true"
    return text


def _convert(shape: Shape, value: Any, depth: int) -> Any:
    """Convert `value` to the type of its shape; nulls in structures, lists and maps are dropped.

    Raises:
        SerializationException: `value` has another type (400).
    """
    converter = _CONVERTERS.get(shape["type"])
    if converter is None or depth > _DEEPEST:
        raise SerializationException("The request is nested too deeply")
    return converter(shape, value, depth + 1)


def _wrong(value: Any, wanted: str) -> SerializationException:
    names = {str: "STRING_VALUE", bool: "TRUE_VALUE" if value else "FALSE_VALUE", int: "NUMBER_VALUE"}
    names |= {float: "NUMBER_VALUE", list: "START_ARRAY", dict: "START_OBJECT"}
    return SerializationException(f"{names.get(type(value), 'NULL_VALUE')} can not be converted to {wanted}")


def _structure(shape: Shape, value: Any, depth: int) -> Any:
    if not isinstance(value, dict):
        raise _wrong(value, "a Structure")
    members = shape["members"]
    return {
        name: _convert(members[name], item, depth)
        for name, item in value.items()
        if name in members and item is not None
    }


def _list(shape: Shape, value: Any, depth: int) -> Any:
    if not isinstance(value, list):
        raise _wrong(value, "a List")
    return [_convert(shape["member"], item, depth) for item in value if item is not None]


def _map(shape: Shape, value: Any, depth: int) -> Any:
    if not isinstance(value, dict):
        raise _wrong(value, "a Map")
    return {_text(name): _convert(shape["value"], item, depth) for name, item in value.items() if item is not None}


def _string(shape: Shape, value: Any, depth: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(value, "a String")
    return _text(value) if isinstance(value, str) else str(value)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SerializationException(
            "A string contains half of a surrogate pair, which UTF-8 cannot encode; send valid Unicode"
        ) from None
    return value


def _integer(shape: Shape, value: Any, depth: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(value, "an Integer")
    if not -_INTEGERS <= value < _INTEGERS or value != int(value):
        raise _wrong(value, "an Integer")
    return int(value)


def _number(shape: Shape, value: Any, depth: int) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST_DOUBLE:
        raise _wrong(value, "a Double")
    return float(value) if shape["type"] in ("double", "float") else value


def _boolean(shape: Shape, value: Any, depth: int) -> Any:
    if not isinstance(value, bool):
        raise _wrong(value, "a Boolean")
    return value


def _blob(shape: Shape, value: Any, depth: int) -> Any:
    if not isinstance(value, str):
        raise _wrong(value, "a Blob")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise SerializationException("The blob is not valid Base64") from None


_CONVERTERS: Mapping[str, Callable[[Shape, Any, int], Any]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
    "string": _string,
    "integer": _integer,
    "long": _integer,
    "double": _number,
    "float": _number,
    "timestamp": _number,
    "boolean": _boolean,
    "blob": _blob,
}
