"""The functions of Logs Insights queries that compute one value from the values of one row.

Source: CloudWatch Logs user guide, "Supported operations and functions".
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Sequence

from thawd.grammar.insights.values import Time, Value, is_true, number, order, text, whole

_LONGEST_TEXT = 1 << 20


def _numeric(apply: Callable[[float], float]) -> Callable[[Sequence[Value]], Value]:
    def function(values: Sequence[Value]) -> Value:
        found = number(values[0])
        if found is None:
            return None
        try:
            return apply(found)
        except (ValueError, OverflowError):
            return None

    return function


def _textual(apply: Callable[..., Value]) -> Callable[[Sequence[Value]], Value]:
    def function(values: Sequence[Value]) -> Value:
        return None if values[0] is None else apply(*map(text, values))

    return function


def _whole(value: str) -> int:
    return whole(value) or 0


def _substring(value: str, start: str, length: str | None = None) -> str:
    begin = max(0, _whole(start))
    return value[begin:] if length is None else value[begin : begin + max(0, _whole(length))]


def _replaced(value: str, old: str, new: str) -> str:
    replaced = value.replace(old, new) if old else value
    return replaced[:_LONGEST_TEXT]


def _extreme(choose: Callable[..., Value]) -> Callable[[Sequence[Value]], Value]:
    def function(values: Sequence[Value]) -> Value:
        present = [value for value in values if value is not None]
        return choose(present, key=order) if present else None

    return function


def _address(value: Value, *versions: int) -> bool:
    try:
        return ipaddress.ip_address(text(value)).version in versions
    except ValueError:
        return False


def _in_subnet(value: Value, subnet: Value, *versions: int) -> bool:
    try:
        address, network = ipaddress.ip_address(text(value)), ipaddress.ip_network(text(subnet), strict=False)
    except ValueError:
        return False
    return address.version in versions and address.version == network.version and address in network


def _to_milliseconds(values: Sequence[Value]) -> Value:
    return whole(values[0])


def _from_milliseconds(values: Sequence[Value]) -> Value:
    found = whole(values[0])
    return None if found is None else Time(found)


FUNCTIONS: dict[str, tuple[int, int, Callable[[Sequence[Value]], Value]]] = {
    "abs": (1, 1, _numeric(abs)),
    "ceil": (1, 1, _numeric(math.ceil)),
    "floor": (1, 1, _numeric(math.floor)),
    "log": (1, 1, _numeric(math.log)),
    "sqrt": (1, 1, _numeric(math.sqrt)),
    "greatest": (1, 100, _extreme(max)),
    "least": (1, 100, _extreme(min)),
    "isempty": (1, 1, lambda values: values[0] is None or text(values[0]) == ""),
    "isblank": (1, 1, lambda values: values[0] is None or not text(values[0]).strip()),
    "ispresent": (1, 1, lambda values: values[0] is not None),
    "coalesce": (1, 100, lambda values: next((value for value in values if value is not None), None)),
    "if": (3, 3, lambda values: values[1] if is_true(values[0]) else values[2]),
    "concat": (1, 100, lambda values: "".join(map(text, values))[:_LONGEST_TEXT]),
    "ltrim": (1, 2, _textual(lambda value, chars=None: value.lstrip(chars))),
    "rtrim": (1, 2, _textual(lambda value, chars=None: value.rstrip(chars))),
    "trim": (1, 2, _textual(lambda value, chars=None: value.strip(chars))),
    "strlen": (1, 1, _textual(len)),
    "toupper": (1, 1, _textual(str.upper)),
    "tolower": (1, 1, _textual(str.lower)),
    "substr": (2, 3, _textual(_substring)),
    "replace": (3, 3, _textual(_replaced)),
    "strcontains": (2, 2, _textual(lambda value, part: int(part in value))),
    "isvalidip": (1, 1, lambda values: _address(values[0], 4, 6)),
    "isvalidipv4": (1, 1, lambda values: _address(values[0], 4)),
    "isvalidipv6": (1, 1, lambda values: _address(values[0], 6)),
    "isipinsubnet": (2, 2, lambda values: _in_subnet(values[0], values[1], 4, 6)),
    "isipv4insubnet": (2, 2, lambda values: _in_subnet(values[0], values[1], 4)),
    "isipv6insubnet": (2, 2, lambda values: _in_subnet(values[0], values[1], 6)),
    "tomillis": (1, 1, _to_milliseconds),
    "frommillis": (1, 1, _from_milliseconds),
    "now": (0, 0, lambda values: int(time.time())),
}
"""By name in lower case: the least and the largest number of arguments, and what computes the value."""
