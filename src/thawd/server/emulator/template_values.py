"""Converts values of a CloudFormation template to the types of an operation's parameters. No side effects.

In a template, a number or boolean may be written as a string, because parameters and intrinsic functions return
strings. A string may be written as a number or boolean.
"""

from __future__ import annotations

import json
from typing import Any


def fitted(shape: Any, value: Any) -> Any:
    """Convert `value` to the types of a botocore shape. A value that cannot be converted is returned unchanged.

    Args:
        shape: botocore's shape: the operation's input shape, or a part of it.
        value: the template's value, with intrinsic functions resolved.
    """
    kind = shape.type_name
    if kind == "structure" and isinstance(value, dict):
        return {name: fitted(shape.members[name], one) if name in shape.members else one for name, one in value.items()}
    if kind == "map" and isinstance(value, dict):
        return {str(name): fitted(shape.value, one) for name, one in value.items()}
    if kind == "list" and isinstance(value, list):
        return [fitted(shape.member, one) for one in value]
    if kind == "string" and not isinstance(value, str):
        return value if value is None else json.dumps(value)
    if isinstance(value, str):
        return _parsed(kind, value)
    return value


def _parsed(kind: str, text: str) -> Any:
    lower = text.lower()
    if kind == "boolean" and lower in ("true", "false"):
        return lower == "true"
    try:
        if kind in ("integer", "long"):
            return int(text)
        if kind in ("float", "double", "timestamp"):
            return float(text)
    except ValueError:
        pass
    return text
