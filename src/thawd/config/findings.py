"""Collects the mistakes in one configuration file, so that users see all of them, in the order of the file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from thawd.errors import Problem

KeyPath = tuple[str | int, ...]
"""The keys of tables and positions in lists that lead to a value, beginning at the top of the file."""

ENVIRONMENT = "environment"
"""Shown instead of the file's name for a mistake in an environment variable."""

_LISTED = 20
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Findings:
    """Mistakes found so far.

    Args:
        file: path of the file as the user wrote it.
        document: the parsed file; mistakes are reported in the order of its keys.
    """

    def __init__(self, file: str, *, document: object) -> None:
        self._file = file
        self._places = {path: place for place, path in enumerate(_walk(document, ()))}
        self._found: list[tuple[int, Problem]] = []

    def add(self, path: KeyPath, *, found: str, allowed: str) -> None:
        """Add a mistake at `path`. The path need not exist in the file."""
        problem = Problem(self._file, spell_key(path), found, allowed)
        self._found.append((self._place(path), problem))

    def add_environment(self, variable: str, *, found: str, allowed: str) -> None:
        """Add a mistake in an environment variable. These mistakes are reported last."""
        self._found.append((len(self._places), Problem(ENVIRONMENT, variable, found, allowed)))

    def problems(self) -> list[Problem]:
        """Return all mistakes in the order of the file's keys; mistakes at one key are in the order they were added."""
        return [problem for _, problem in sorted(self._found, key=lambda entry: entry[0])]

    def _place(self, path: KeyPath) -> int:
        # A mistake at a key that the file does not have is sorted as if it were at the table that lacks the key.
        while path not in self._places:
            path = path[:-1]
        return self._places[path]


def _walk(value: object, path: KeyPath) -> Iterator[KeyPath]:
    yield path
    children: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield from _walk(child, (*path, key))


def spell_key(path: KeyPath) -> str:
    """Return a key path as a user writes it: ``buckets.uploads.notify[0].suffix``, ``routes."GET /items"``."""
    spelled = ""
    for key in path:
        if isinstance(key, int):
            spelled += f"[{key}]"
            continue
        shown = key if _BARE_KEY.fullmatch(key) else '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        spelled += f".{shown}" if spelled else shown
    return spelled


def one_of(name: str, names: Iterable[str], *, what: str) -> str:
    """Return a text for `Problem.allowed` that lists the allowed names, the one most similar to `name` first.

    Args:
        name: the name in the file.
        names: the allowed names, in the order to show them in.
        what: a plural noun for the names, such as "functions of this file".
    """
    choices = list(names)
    if not choices:
        return f"nothing, because there are no {what}"
    close = [choice for choice in choices if choice.lower() == name.lower()]
    close = close or difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    others = [choice for choice in choices if choice not in close[:1]]
    listed = ", ".join(others[:_LISTED]) + (", ..." if len(others) > _LISTED else "")
    if not close:
        return f"one of the {what}: {listed}"
    suggestion = f'"{close[0]}" (did you mean that?)'
    return f"{suggestion} or another of the {what}: {listed}" if others else suggestion
