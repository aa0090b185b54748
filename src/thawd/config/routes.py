"""Parses route keys in API Gateway's form, such as ``GET /items/{id}``, and finds keys that match the same requests."""

from __future__ import annotations

import re

from thawd.config.findings import one_of
from thawd.config.kinds import spell
from thawd.config.options.http import METHODS, ROUTE_KEY

RESERVED_SEGMENTS = ("2015-03-31", "2018-06-01", "2021-11-15", "_thawd", "_urls")
"""First path segments that Lambda's API and thawd itself use."""

_LITERAL = re.compile(r"[A-Za-z0-9._~!$&'()*,;=:@-]+")
_PARAMETER = re.compile(r"\{([A-Za-z0-9._-]+)(\+?)\}")


class RouteKeyError(Exception):
    """A text is not a route key.

    Attributes:
        allowed: the form that is allowed, in words.
    """

    def __init__(self, found: str, *, allowed: str) -> None:
        super().__init__(found)
        self.allowed = allowed


def parse_route_key(key: str) -> tuple[str, tuple[str, ...]]:
    """Return the method and the path segments of a route key other than ``$default``. The path ``/`` has no segments.

    Raises:
        RouteKeyError: the text is not a route key.
    """
    method, space, path = key.partition(" ")
    if not space:
        raise RouteKeyError(f"the route {spell(key)}", allowed=ROUTE_KEY)
    if method not in METHODS:
        raise RouteKeyError(f'the method "{method}"', allowed=one_of(method, METHODS, what="methods"))
    if not path.startswith("/"):
        raise RouteKeyError(f'the path "{path}"', allowed=f'a path that begins with a slash, such as "/{path.strip()}"')
    segments = tuple(path[1:].split("/")) if path != "/" else ()
    names: list[str] = []
    for position, segment in enumerate(segments):
        names += _parameter_names(segment, is_last=position == len(segments) - 1)
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise RouteKeyError(f"the parameter {{{min(repeated)}}} twice", allowed="a different name for each parameter")
    return method, segments


def _parameter_names(segment: str, *, is_last: bool) -> list[str]:
    if not segment:
        allowed = "one slash between segments and none at the end"
        raise RouteKeyError("an empty path segment", allowed=allowed)
    parameter = _PARAMETER.fullmatch(segment)
    if parameter:
        if parameter[2] and not is_last:
            raise RouteKeyError(f"{segment} before the end", allowed="{name+} as the last segment only")
        return [parameter[1]]
    if not _LITERAL.fullmatch(segment):
        allowed = "letters, digits and -._~!$&'()*,;=:@, or {name}, or at the end {name+}"
        raise RouteKeyError(f'the path segment "{segment}"', allowed=allowed)
    return []


def shape_of(method: str, segments: tuple[str, ...]) -> tuple[str, ...]:
    """Return a route's method and path segments without the names of parameters.

    Two routes match the same requests if their results are equal.
    """
    return (method, *(_PARAMETER.sub(r"{\2}", segment) for segment in segments))
