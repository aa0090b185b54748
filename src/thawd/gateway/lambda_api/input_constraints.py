"""The constraints of inputs of the Lambda API, and what AWS says of values that do not meet them. No side effects."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thawd.control.configuration import AWS_RUNTIMES

Shape = Mapping[str, Any]
"""The type of an input or of a part of it, as ``lambda_operations.json`` describes it."""
# Longest text that is matched against a shape's pattern if the shape has no maximum length. In AWS's model, only the
# names of environment variables have a pattern and no maximum length.
_LONGEST_MATCHED = 4096
_NOT_NULL = "Member must not be null"
# AWS's errors list the values of some sets in another order than the service model. Observed on AWS in 2026-03.
_ORDERS = (
    ("LATEST", "AT_TIMESTAMP", "TRIM_HORIZON"),
    ("RESPONSE_STREAM", "BUFFERED"),
    ("Terminate", "Allow"),
)
# AWS's errors about a runtime to search for list these. Observed on AWS in 2025-11.
_ALL_RUNTIMES = (  # noqa: SIM905 - a list of quoted words reads worse
    "ruby3.5 ruby2.6 dotnetcore1.0 python3.7 nodejs8.10 nasa ruby2.7 python2.7-greengrass dotnetcore2.0 python3.8 "
    "java21 dotnet6 dotnetcore2.1 python3.9 java11 nodejs6.10 provided dotnetcore3.1 dotnet8 java25 java17 nodejs "
    "nodejs4.3 java8.al2 go1.x dotnet10 nodejs20.x go1.9 byol nodejs10.x provided.al2023 nodejs22.x python3.10 java8 "
    "nodejs12.x python3.11 nodejs24.x nodejs8.x python3.12 nodejs14.x nodejs8.9 nodejs26.x python3.13 python3.14 "
    "nodejs16.x python3.15 provided.al2 nodejs4.3-edge nodejs18.x ruby3.2 python3.4 ruby3.3 ruby3.4 ruby2.5 "
    "python3.6 python2.7"
).split()
_FAILED = "failed to satisfy constraint:"
_A_RUNTIME = "python3.12"
_NUMBERS = ("integer", "long", "double", "float")


def problems_of_members(members: Mapping[str, Shape], values: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, shape in members.items():
        at = f"{path}{'.' if path else ''}{name[0].lower()}{name[1:]}"
        if name in values:
            yield from _problems(shape, values[name], at)
        elif shape.get("required"):
            yield f"Value null at '{at}' {_FAILED} Member must not be null"


def _problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    """The constraints that `value` and the values in it do not meet, in AWS's wording; `value` is converted already."""
    for constraint in _broken(shape, value):
        yield f"{_value(shape, value)} at '{path}' {_FAILED} {constraint}"
    kind = shape["type"]
    if kind == "structure":
        yield from problems_of_members(shape["members"], value, path)
    elif kind == "list":
        yield from _problems_of_list(shape["member"], value, path)
    elif kind == "map":
        yield from _problems_of_map(shape, value, path)


def _problems_of_list(member: Shape, value: list[Any], path: str) -> Iterator[str]:
    if member["type"] == "structure":
        for index, item in enumerate(value, 1):
            yield from _problems(member, item, f"{path}.{index}.member")
    elif not any(True for item in value for _ in _broken(member, item)):
        return
    elif _A_RUNTIME in member.get("enum", ()):
        yield f"Value {_shown(value)} at '{path}' {_FAILED} {_set_words(AWS_RUNTIMES)}"
    else:
        limits = ", ".join(_limits(member))
        yield (f"Value {_shown(value)} at '{path}' {_FAILED} Member must satisfy constraint: [{limits}]")


def _problems_of_map(shape: Shape, value: Mapping[str, Any], path: str) -> Iterator[str]:
    for what, part, items in (("keys", shape["key"], value.keys()), ("value", shape["value"], value.values())):
        if part["type"] == "structure":
            for key, item in value.items():
                yield from _problems(part, item, f"{path}.{key}.member")
        elif any(True for item in items for _ in _broken(part, item)):
            limits = ", ".join(limit for limit in _limits(part) if what == "value" or limit != _NOT_NULL)
            yield (f"{_value(shape, value)} at '{path}' {_FAILED} Map {what} must satisfy constraint: [{limits}]")


def _value(shape: Shape, value: Any) -> str:
    """The beginning of an error. AWS shows no value that the model calls sensitive, such as environment variables."""
    return "Value" if shape.get("sensitive") else f"Value {_shown(value)}"


def _shown(value: Any) -> str:
    """A value as AWS's errors show it: the items of lists and maps without quotation marks, as Java prints them."""
    return f"'{_plain(value)}'"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_set(values: list[str]) -> str:
    """The constraint of a set of values. For runtimes, AWS's service has another list than its model."""
    known = next((order for order in _ORDERS if set(order) == set(values)), values)
    return _set_words(_ALL_RUNTIMES if _A_RUNTIME in values else known)


def _set_words(values: Sequence[str]) -> str:
    return f"Member must satisfy enum value set: [{', '.join(values)}]"


def _range_of(shape: Shape) -> tuple[Any, Any]:
    """The least and the most of a value or of its length, or None; AWS's errors show those of a double as doubles."""
    least, most = shape.get("min"), shape.get("max")
    if shape["type"] in ("double", "float"):
        return (None if least is None else float(least)), (None if most is None else float(most))
    return least, most


def _limits(shape: Shape) -> Iterator[str]:
    """All constraints of the items of a list or map, in the order in which AWS's errors list them."""
    least, most = _range_of(shape)
    if shape["type"] in _NUMBERS:
        if most is not None:
            yield f"Member must have value less than or equal to {most}"
        if least is not None:
            yield f"Member must have value greater than or equal to {least}"
    else:
        if most is not None:
            yield f"Member must have length less than or equal to {most}"
        if least is not None:
            yield f"Member must have length greater than or equal to {least}"
        if "pattern" in shape:
            yield f"Member must satisfy regular expression pattern: {shape['pattern']}"
        if "enum" in shape:
            yield _of_set(shape["enum"])
    yield _NOT_NULL


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of AWS's model. Character classes of Java that Python lacks (``\\p{L}``) are replaced."""
    for java, python in ((r"\p{L}", r"\w"), (r"\p{N}", r"\w"), (r"\p{Z}", r"\s")):
        pattern = pattern.replace(java, python)
    return re.compile(pattern, re.DOTALL if pattern == ".*" else 0)


def _broken(shape: Shape, value: Any) -> Iterator[str]:
    kind = shape["type"]
    least, most = _range_of(shape)
    if kind in _NUMBERS:
        if least is not None and value < least:
            yield f"Member must have value greater than or equal to {least}"
        if most is not None and value > most:
            yield f"Member must have value less than or equal to {most}"
    elif kind in ("string", "list", "map", "blob"):
        if least is not None and len(value) < least:
            yield f"Member must have length greater than or equal to {least}"
        if most is not None and len(value) > most:
            yield f"Member must have length less than or equal to {most}"
    if kind == "string":
        pattern, enum = shape.get("pattern"), shape.get("enum")
        # A text that is much longer than allowed is not matched, since matching some of AWS's patterns takes far more
        # than linear time. It is refused because of its length, anyway.
        longest = _LONGEST_MATCHED if most is None else most + 256
        is_broken = most is None if len(value) > longest else pattern and not _compiled(pattern).fullmatch(value)
        if pattern is not None and is_broken:
            yield f"Member must satisfy regular expression pattern: {pattern}"
        if enum is not None and value not in enum:
            yield _of_set(enum)
