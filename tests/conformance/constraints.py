"""Situations derived from AWS's service model: for every constraint of every input, a value that does not meet it and
AWS's words for that, and the values at its boundary.

Source: the service model that AWS publishes with botocore; the words as AWS's answers have them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from botocore.model import Shape, StructureShape

from .wire import operation

_DESCRIBED = Path(__file__).parents[2] / "src" / "thawd" / "gateway" / "lambda_api" / "lambda_operations.json"
_OPERATIONS: list[str] = list(json.loads(_DESCRIBED.read_text(encoding="utf-8"))["operations"])
OPERATIONS = [name for name in _OPERATIONS if name != "InvokeAsync"]
"""The operations of the control plane that thawd serves."""
# Valid values of the model's patterns; the first that fits is used.
_SAMPLES = (
    "a1",
    "1",
    "$LATEST",
    "lambda:GetLayerVersion",
    "lambda:InvokeFunction",
    "000000000000",
    "o-abcdefghij",
    "arn:aws:iam::000000000000:role/anybody",
    "arn:aws:lambda:us-east-1:000000000000:layer:absent:1",
    "arn:aws:lambda:us-east-1:000000000000:function:absent",
    "arn:aws:lambda:us-east-1:000000000000:code-signing-config:csc-0123456789abcdefg",
    "arn:aws:signer:us-east-1:000000000000:/signing-profiles/a/b",
    "arn:aws:lambda:us-east-1::runtime:0123",
    "arn:aws:sqs:us-east-1:000000000000:absent",
    "arn:aws:elasticfilesystem:us-east-1:000000000000:access-point/fsap-0123456789abcdef0",
    "arn:aws:lambda:us-east-1:000000000000:capacity-provider:absent",
    "arn:aws:lambda:us-east-1:000000000000:runtime/python/version/1",
    "ALL",
    "/mnt/a",
    "sg-1",
    "subnet-1",
    "broker.example:9092",
    "1.dkr.ecr.us-east-1.amazonaws.com/x:latest",
    "8f7d3a52-1c2d-4e5f-9a6b-7c8d9e0f1a2b",
    "x" * 40,
    "0" * 88,
)
_BAD = ("a b!", "!", "a?b", "\u00e9", "a$b", "arn:aws:none", "a.b", " ", "system.x", "")
# AWS's errors list these sets in another order than the model. Observed on AWS.
_ORDERS = (
    ["LATEST", "AT_TIMESTAMP", "TRIM_HORIZON"],
    ["RESPONSE_STREAM", "BUFFERED"],
    ["Terminate", "Allow"],
)
_LONGEST = 25_000
_WRONG: dict[str, Any] = {
    "string": {"a": 1},
    "integer": "many",
    "long": "many",
    "double": "much",
    "boolean": "perhaps",
    "list": "one",
    "map": ["a"],
    "structure": ["a"],
    "blob": 5,
}
"""For each type, a value of another type."""
Build = Callable[[Any], dict[str, Any]]


class Situation(NamedTuple):
    """A call and what AWS answers.

    Attributes:
        operation: name of the operation.
        what: the member and the constraint.
        parameters: the operation's parameters.
        said: the error's message.
    """

    operation: str
    what: str
    parameters: dict[str, Any]
    said: str

    def __str__(self) -> str:
        return f"{self.operation}-{self.what}"


def fits(shape: Shape, text: str) -> bool:
    """Return whether a text meets all constraints of its shape."""
    return not list(_broken(shape, text))


@cache
def sample(shape: Shape) -> Any:
    """Return a value that meets all constraints of a shape."""
    metadata = shape.metadata
    kind = shape.type_name
    if kind == "structure":
        assert isinstance(shape, StructureShape)
        return {name: sample(shape.members[name]) for name in shape.required_members}
    if kind == "list":
        return [sample(shape.member)] * max(1, metadata.get("min", 0))
    if kind == "map":
        return {sample(shape.key): sample(shape.value)}
    if kind == "string":
        return shape.enum[0] if shape.enum else next(text for text in _SAMPLES if fits(shape, text))
    if kind in ("integer", "long", "timestamp"):
        return max(1, metadata.get("min", 1))
    return {"boolean": False, "double": 0.5, "blob": b"no zip"}[kind]


def valid(name: str) -> dict[str, Any]:
    """Return parameters that the model allows, and that change nothing: they name things that do not exist."""
    described = operation(name).input_shape
    if described is None:
        return {}
    parameters = {member: copy.deepcopy(sample(described.members[member])) for member in described.required_members}
    if "FunctionName" in parameters:
        parameters["FunctionName"] = "absent"
    if name == "CreateFunction":
        parameters |= {"Runtime": "python2.7", "Handler": "app.handler"}
    return parameters


def _limit_of(kind: str, what: str, limit: float) -> str:
    if kind == "double":
        return f"Member must have value {what} than or equal to {float(limit)}"
    if kind in ("integer", "long"):
        return f"Member must have value {what} than or equal to {limit}"
    return f"Member must have length {what} than or equal to {limit}"


def _of_set(values: list[str]) -> str:
    known = next((order for order in _ORDERS if sorted(order) == sorted(values)), values)
    return f"Member must satisfy enum value set: [{', '.join(known)}]"


def _matches(pattern: str, text: str) -> bool:
    for java, python in ((r"\p{L}", r"\w"), (r"\p{N}", r"\w"), (r"\p{Z}", r"\s")):
        pattern = pattern.replace(java, python)
    return re.fullmatch(pattern, text, re.DOTALL if pattern == ".*" else 0) is not None


def _broken(shape: Shape, value: Any) -> Iterator[str]:
    """Yield AWS's words for each constraint of its shape that a value does not meet."""
    metadata, kind = shape.metadata, shape.type_name
    size = value if kind in ("integer", "long", "double") else len(value) if hasattr(value, "__len__") else None
    if size is not None and size < metadata.get("min", size):
        yield _limit_of(kind, "greater", metadata["min"])
    if size is not None and size > metadata.get("max", size):
        yield _limit_of(kind, "less", metadata["max"])
    if kind == "string" and "pattern" in metadata and not _matches(metadata["pattern"], value):
        yield f"Member must satisfy regular expression pattern: {metadata['pattern']}"
    if kind == "string" and shape.enum and value not in shape.enum:
        yield _of_set(shape.enum)


def _all_limits(shape: Shape) -> str:
    """Return the constraints of a list's or map's items, in the order in which AWS's errors list them."""
    metadata, kind = shape.metadata, shape.type_name
    found = [_limit_of(kind, "less", metadata["max"])] if "max" in metadata else []
    found += [_limit_of(kind, "greater", metadata["min"])] if "min" in metadata else []
    found += [f"Member must satisfy regular expression pattern: {metadata['pattern']}"] if "pattern" in metadata else []
    found += [_of_set(shape.enum)] if kind == "string" and shape.enum else []
    return ", ".join(found)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={_shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)


def _said(shape: Shape, value: Any, path: str, constraints: list[str]) -> str:
    shown = "Value" if shape.metadata.get("sensitive") else f"Value '{_shown(value)}'"
    problems = "; ".join(f"{shown} at '{path}' failed to satisfy constraint: {one}" for one in constraints)
    plural = "" if len(constraints) == 1 else "s"
    return f"{len(constraints)} validation error{plural} detected: {problems}"


def _longer(shape: Shape, size: int) -> str | None:
    """Return a text of `size` characters that meets the constraints of a shape except for its length."""
    candidates = ["x" * size, "0" * size]
    candidates += [text + text[-1] * (size - len(text)) for text in _SAMPLES if len(text) < size]
    pattern = shape.metadata.get("pattern")
    return next((text for text in candidates if pattern is None or _matches(pattern, text)), None)


def _is_runtime(shape: Shape) -> bool:
    return shape.name == "Runtime"


def bad_values(shape: Shape, *, in_path: bool, in_query: bool) -> Iterator[tuple[str, Any]]:
    """Yield values that do not meet the constraints of a shape, each with the constraint's name."""
    metadata, kind = shape.metadata, shape.type_name
    least, most = metadata.get("min"), metadata.get("max")
    if kind in ("integer", "long", "double"):
        if least is not None:
            yield "min", least - (1.0 if kind == "double" else 1)
        if most is not None and most < 2**31 - 1:
            yield "max", most + (1.0 if kind == "double" else 1)
    elif kind == "string":
        if least and not in_path and not in_query:
            yield "min", ""
        if most is not None and most < _LONGEST and (text := _longer(shape, most + 1)) is not None:
            yield "max", text
        bad = [text for text in _BAD if text or not (in_path or in_query)]
        if shape.enum and not _is_runtime(shape):
            yield "enum", "nonsense"
        elif "pattern" in metadata:
            fitting = [text for text in bad if len(list(_broken(shape, text))) == 1]
            broken = [text for text in fitting if not _matches(metadata["pattern"], text)]
            if broken:
                yield "pattern", broken[0]
    elif kind in ("list", "map") and not in_query:
        if least:
            yield "min", [] if kind == "list" else {}
        if most is not None and most <= 1000 and kind == "list":
            yield "max", [sample(shape.member)] * (most + 1)


def _item_problems(shape: Shape, path: str) -> Iterator[tuple[str, Any, str]]:
    """Yield lists and maps with an item that does not meet its constraints."""
    if shape.type_name == "list" and shape.member.type_name != "structure" and not _is_runtime(shape.member):
        for what, value in bad_values(shape.member, in_path=False, in_query=False):
            limits = f"Member must satisfy constraint: [{_all_limits(shape.member)}, Member must not be null]"
            yield f"item.{what}", [value], _said(shape, [value], path, [limits])
    if shape.type_name == "map":
        for what, value in bad_values(shape.key, in_path=False, in_query=False):
            document = {value: sample(shape.value)}
            limits = f"Map keys must satisfy constraint: [{_all_limits(shape.key)}]"
            yield f"key.{what}", document, _said(shape, document, path, [limits])
        if shape.value.type_name in ("structure", "list"):
            return
        for what, value in bad_values(shape.value, in_path=False, in_query=False):
            document = {sample(shape.key): value}
            limits = f"Map value must satisfy constraint: [{_all_limits(shape.value)}, Member must not be null]"
            yield f"value.{what}", document, _said(shape, document, path, [limits])


def _java(name: str) -> str:
    return name[0].lower() + name[1:]


def _walk(shape: Shape, path: str, build: Build) -> Iterator[tuple[Shape, str, Build]]:
    """Yield every part of an input with its path in AWS's errors, and what builds an input with a value there."""
    yield shape, path, build
    if shape.type_name == "structure":
        assert isinstance(shape, StructureShape)
        for name, member in shape.members.items():

            def inside(value: Any, name: str = name, shape: Shape = shape) -> dict[str, Any]:
                return build({**copy.deepcopy(sample(shape)), name: value})

            yield from _walk(member, f"{path}.{_java(name)}", inside)
    elif shape.type_name == "list" and shape.member.type_name == "structure":
        yield from _walk(shape.member, f"{path}.1.member", lambda value: build([value]))


def parts(name: str) -> Iterator[tuple[Shape, str, Build]]:
    """Yield every part of an operation's input."""
    described = operation(name).input_shape
    for member, shape in {} if described is None else described.members.items():

        def build(value: Any, member: str = member) -> dict[str, Any]:
            return {**valid(name), member: value}

        yield from _walk(shape, _java(member), lambda value, build=build: build(value))


def broken(name: str) -> Iterator[Situation]:
    """Yield an input for each constraint of an operation that does not meet it."""
    for shape, path, build in parts(name):
        where = shape.serialization.get("location")
        for what, value in bad_values(shape, in_path=where == "uri", in_query=where == "querystring"):
            said = _said(shape, value, path, list(_broken(shape, value)))
            yield Situation(name, f"{path}-{what}", build(value), said)
        if where == "querystring":
            continue
        for what, value, said in _item_problems(shape, path):
            yield Situation(name, f"{path}-{what}", build(value), said)


def missing(name: str) -> Iterator[Situation]:
    """Yield inputs without a member that is required."""
    described = operation(name).input_shape
    for member in () if described is None else described.required_members:
        if described.members[member].serialization.get("location") != "uri":
            parameters = {key: value for key, value in valid(name).items() if key != member}
            yield _missed(name, _java(member), parameters)
    for shape, path, build in parts(name):
        for member in shape.required_members if isinstance(shape, StructureShape) else ():
            value = {key: item for key, item in sample(shape).items() if key != member}
            yield _missed(name, f"{path}.{_java(member)}", build(value))


def _missed(name: str, path: str, parameters: dict[str, Any]) -> Situation:
    words = f"Value null at '{path}' failed to satisfy constraint: Member must not be null"
    return Situation(name, f"{path}-null", parameters, f"1 validation error detected: {words}")


def boundaries(name: str) -> Iterator[Situation]:
    """Yield inputs whose values are exactly at a limit, or one of a set: none of them is a validation error."""
    for shape, path, build in parts(name):
        metadata, kind = shape.metadata, shape.type_name
        where = shape.serialization.get("location")
        if kind in ("integer", "long", "double"):
            limits = [("min", metadata.get("min")), ("max", metadata.get("max"))]
            found: list[tuple[str, Any]] = [(what, value) for what, value in limits if value is not None]
        elif kind == "string" and shape.enum and not _is_runtime(shape):
            found = [(f"is-{value}", value) for value in shape.enum]
        elif kind == "string" and metadata.get("max", _LONGEST) < _LONGEST and where != "querystring":
            text = _longer(shape, metadata["max"])
            found = [] if text is None else [("longest", text)]
        else:
            continue
        for what, value in found:
            yield Situation(name, f"{path}-{what}", build(value), "")


def wrong_types(name: str) -> Iterator[Situation]:
    """Yield inputs with a value of a type that its member cannot have."""
    for shape, path, build in parts(name):
        if shape.serialization.get("location") is None and shape.type_name in _WRONG:
            yield Situation(name, f"{path}-type", build(_WRONG[shape.type_name]), "")
