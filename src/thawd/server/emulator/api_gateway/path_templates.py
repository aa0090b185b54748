"""Matches the paths of requests with templates such as ``/users/{id}/{rest+}``. No side effects.

Source: API Gateway developer guide, "Set up a proxy integration with a proxy resource" and "Create routes for HTTP
APIs", which say that the most specific match serves a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Template = TypeVar("Template")


def matched(template: str, path: str, *, is_strict: bool = False) -> dict[str, str] | None:
    """Return the values of a template's parameters, percent-encoded as in the path; None: the path does not match.

    Args:
        template: for example ``/users/{id}/{rest+}``. A part with a plus sign matches the rest of the path, which may
            not be empty.
        path: percent-encoded path.
        is_strict: whether a slash at the end of the path is significant, as with HTTP APIs. REST APIs ignore it.
    """
    wanted = template.removeprefix("/").split("/")
    given = (path.removeprefix("/") if is_strict else path.lstrip("/").rstrip("/")).split("/")
    found: dict[str, str] = {}
    for index, part in enumerate(wanted):
        if part.startswith("{") and part.endswith("+}"):
            rest = "/".join(given[index:])
            return {**found, part[1:-2]: rest} if rest else None
        if index >= len(given):
            return None
        if part.startswith("{") and part.endswith("}"):
            if not given[index]:
                return None
            found[part[1:-1]] = given[index]
        elif part != given[index]:
            return None
    return found if len(wanted) == len(given) else None


def specificity(template: str) -> tuple[int, ...]:
    """Orders templates that match the same path, the most specific first: fixed parts, parameters, greedy ones."""
    parts = template.strip("/").split("/")
    return tuple(2 if part.endswith("+}") else 1 if part.startswith("{") else 0 for part in parts)


def best(
    templates: Iterable[Template], path: str, *, template_of: Callable[[Template], str], is_strict: bool = False
) -> Iterable[tuple[Template, dict[str, str]]]:
    """Return the templates that match a path, each with the values of its parameters, the most specific first.

    Args:
        templates: the candidates, for example the resources of an API.
        path: percent-encoded path.
        template_of: returns the template of a candidate.
        is_strict: as for `matched`.
    """
    matches = [(one, matched(template_of(one), path, is_strict=is_strict)) for one in templates]
    found = [(one, values) for one, values in matches if values is not None]
    return sorted(found, key=lambda pair: specificity(template_of(pair[0])))
