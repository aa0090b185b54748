"""Decides which files of a folder a build may copy: the patterns of ``.dockerignore``.

Source: https://docs.docker.com/build/concepts/context/#dockerignore-files; Go's path.Match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from thawd.errors import ImageError


class Ignored:
    """Patterns, the last of which that matches a path decides. A pattern with ``!`` brings paths back.

    Args:
        lines: lines of the file.
        what: the file, for messages.

    Raises:
        ImageError: a pattern is not one.
    """

    def __init__(self, lines: Iterable[str], what: str = ".dockerignore") -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for line in lines:
            pattern = line.strip()
            if not pattern or line.startswith("#"):
                continue
            brings_back = pattern.startswith("!")
            parts = [part for part in pattern.removeprefix("!").strip().split("/") if part not in ("", ".")]
            if parts:
                self._rules.append((re.compile(_expression(parts, what), re.DOTALL), brings_back))

    @property
    def brings_back(self) -> bool:
        """Whether a path in an ignored folder can be included, so that ignored folders must be searched."""
        return any(back for _, back in self._rules)

    def __call__(self, path: str) -> bool:
        """Return whether a path, relative to the folder, is left out.

        A pattern also matches everything below a folder.
        """
        ignored = False
        for expression, back in self._rules:
            if expression.match(path):
                ignored = not back
        return ignored


def read_ignored(dockerfile: Path, context: Path, *, always: Iterable[Path] = ()) -> Ignored:
    """Return the patterns for a build: those of ``NAME.dockerignore`` beside the Dockerfile, or of the folder.

    Args:
        dockerfile: the Dockerfile.
        context: the build's folder.
        always: paths that no pattern can bring back, for example the data folder with the images themselves.

    Raises:
        ImageError: the file cannot be read, or a pattern is not one.
    """
    within = [path.relative_to(context) for path in always if path.is_relative_to(context) and path != context]
    last = ["/".join(re.sub(r"([*?\[\\])", r"\\\1", part) for part in path.parts) for path in within]
    for path in (dockerfile.with_name(f"{dockerfile.name}.dockerignore"), context / ".dockerignore"):
        try:
            return Ignored([*path.read_text(encoding="utf-8-sig").splitlines(), *last], str(path))
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            raise ImageError(f"{path} is not a text in UTF-8") from None
    return Ignored(last)


def pattern(text: str) -> re.Pattern[str]:
    """Return the expression for one component of a path with ``*``, ``?`` and ``[…]``.

    Raises:
        ImageError: the pattern is not one.
    """
    return re.compile(_component(text, text) + r"\Z", re.DOTALL)


def _expression(parts: list[str], what: str) -> str:
    expression = ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            expression += ".*" if last else "(?:.*/)?"
        else:
            expression += _component(part, what) + ("" if last else "/")
    return expression + r"(?:/.*)?\Z"


def _component(part: str, what: str) -> str:
    expression, at = "", 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            expression += "[^/]*"
        elif char == "?":
            expression += "[^/]"
        elif char == "[":
            end = part.find("]", at + 1)
            if end < 0:
                raise ImageError(f"{what}: the pattern {part!r} has a [ without its ]")
            inside = part[at:end].replace("\\", "\\\\").replace("[", "\\[").replace("&&", "&\\&")
            expression += f"[{inside}]"
            at = end + 1
        elif char == "\\" and at < len(part):
            expression += re.escape(part[at])
            at += 1
        else:
            expression += re.escape(char)
    try:
        re.compile(expression)
    except re.error as error:
        raise ImageError(f"{what}: the pattern {part!r} cannot be used: {error}") from None
    return expression
