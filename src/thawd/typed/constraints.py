"""Limits in annotations, such as ``Annotated[int, Field(ge=1)]``, of pydantic, annotated-types or msgspec.

The libraries' objects are not imported: all of them name a limit by the same attribute.
"""

import re
from typing import Any, Dict, Iterable, Optional

_SCHEMA_NAMES = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}


def limits_in(metadata: Iterable[Any]) -> Dict[str, Any]:
    """The limits in an annotation's metadata, by name, for example ``{"ge": 1}``."""
    limits: Dict[str, Any] = {}
    for each in metadata:
        for name in (*_SCHEMA_NAMES, "min_length", "max_length", "description", "title"):
            value = getattr(each, name, None)
            if value is not None and not callable(value):
                limits[name] = value
        nested = getattr(each, "metadata", None)  # pydantic's Field keeps its limits in a list
        if isinstance(nested, (list, tuple)):
            limits.update(limits_in(nested))
    return limits


def violation(value: Any, limits: Dict[str, Any]) -> Optional[str]:
    """What is wrong with a value; None: it keeps to the limits."""
    checks = (
        ("gt", lambda limit: value > limit, "must be greater than %s"),
        ("ge", lambda limit: value >= limit, "must be at least %s"),
        ("lt", lambda limit: value < limit, "must be less than %s"),
        ("le", lambda limit: value <= limit, "must be at most %s"),
        ("multiple_of", lambda limit: _is_multiple(value, limit), "must be a multiple of %s"),
        ("min_length", lambda limit: len(value) >= limit, "must have at least %s items or characters"),
        ("max_length", lambda limit: len(value) <= limit, "must have at most %s items or characters"),
        ("pattern", lambda limit: re.search(limit, value) is not None, "must match %s"),
    )
    for name, holds, text in checks:
        if name in limits and value is not None and not holds(limits[name]):
            return text % (limits[name],)
    return None


def _is_multiple(value: Any, limit: Any) -> bool:
    """Whether `value` is a multiple of `limit`, except for rounding: 0.07 is one of 0.01."""
    rest = abs(value % limit)
    if isinstance(value, float) or isinstance(limit, float):
        # Both numbers are rounded by half of 2^-52 of their size at most, and the limit goes into the value often.
        return bool(min(rest, abs(limit) - rest) <= abs(value) * 1e-15)
    return bool(rest == 0)


def schema_of(limits: Dict[str, Any], *, is_text: bool) -> Dict[str, Any]:
    """The limits as keywords of JSON Schema."""
    schema = {_SCHEMA_NAMES[name]: value for name, value in limits.items() if name in _SCHEMA_NAMES}
    for name, of_text, of_items in (("min_length", "minLength", "minItems"), ("max_length", "maxLength", "maxItems")):
        if name in limits:
            schema[of_text if is_text else of_items] = limits[name]
    schema.update({name: limits[name] for name in ("description", "title") if name in limits})
    return schema
