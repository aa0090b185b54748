"""Evaluates JSONPath expressions as API Gateway does. No side effects."""

from __future__ import annotations

import functools
import re
from typing import Any

# The parts of a JSONPath that can match several values: ``..``, a wildcard, a slice, several names, a filter.
_SEVERAL = re.compile(r"\.\.|\[[^'\"\]]*[*:?,]|\.\*|\[\?")


class PathError(ValueError):
    """An expression is no JSONPath; the message says why."""


@functools.lru_cache(maxsize=512)
def _parsed(expression: str) -> Any:
    from jsonpath_ng.ext.parser import parse

    try:
        return parse(expression)
    except Exception as error:  # the parser raises plain exceptions
        raise PathError(f"the path {expression!r} cannot be read: {error}") from error


def found_at(expression: str, document: Any) -> Any:
    """Return the value at a JSONPath; a list of values if the path can find any number of them; None: there is nothing.

    Raises:
        PathError: the expression is no JSONPath.
    """
    if expression in ("$", "", "$."):
        return document
    found = [match.value for match in _parsed(expression).find(document)]
    return found if _SEVERAL.search(expression) else (found[0] if found else None)


def member_at(path: str, document: Any) -> Any:
    """Return the value at a path without ``$``, such as ``identity.sourceIp``; None: no value, or not a path.

    Names between dots may contain characters that JSONPath does not allow there, such as a hyphen.
    """
    found = document
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            break
        found = found[name]
    else:
        return found
    try:
        return found_at(f"$.{path}", document)
    except PathError:
        return None
