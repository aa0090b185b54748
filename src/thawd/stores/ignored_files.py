"""Which files of a code folder its ``.thawdignore`` leaves out of packages. It has the syntax of ``.gitignore``.

A pattern with a slash that is not its last character applies from the folder itself, another one at any depth. ``*``
and ``?`` match no slash, ``**`` matches any folders. A pattern that ends with a slash matches only folders. ``!``
brings back what an earlier line leaves out, unless a folder above it is left out.

Source: gitignore(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NAME = ".thawdignore"


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    leaves_out: bool
    only_folders: bool


class IgnoredFiles:
    """The rules of one ``.thawdignore``.

    Args:
        text: its contents.
    """

    def __init__(self, text: str) -> None:
        self._rules = [rule for line in text.splitlines() if (rule := _rule(line)) is not None]

    @classmethod
    def of(cls, folder: Path) -> IgnoredFiles | None:
        """Read a folder's rules; None if it has none, or if they cannot be read."""
        try:
            found = cls((folder / NAME).read_text(errors="replace"))
        except OSError:
            return None
        return found if found._rules else None

    def leave_out(self, relative: str, *, is_folder: bool) -> bool:
        """Return whether a file or folder itself is left out. The folders above it are not examined.

        Args:
            relative: path in the folder, with slashes.
            is_folder: whether it is a folder.
        """
        left_out = False
        for rule in self._rules:
            if (
                rule.leaves_out != left_out
                and (is_folder or not rule.only_folders)
                and rule.pattern.fullmatch(relative)
            ):
                left_out = rule.leaves_out
        return left_out

    def leave_out_below(self, relative: str) -> bool:
        """Return whether a file or a folder above it is left out."""
        path = PurePosixPath(relative)
        above = [parent for parent in path.parents if parent.name]
        return self.leave_out(relative, is_folder=False) or any(
            self.leave_out(str(folder), is_folder=True) for folder in above
        )


def _rule(line: str) -> _Rule | None:
    text = line.rstrip("\r")
    if not text.endswith("\\ "):
        text = text.rstrip(" \t")
    if not text or text.startswith("#"):
        return None
    leaves_out = not text.startswith("!")
    text = text.removeprefix("!")
    if text.startswith(("\\#", "\\!")):
        text = text[1:]
    only_folders = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anchored = "/" in text
    text = text.removeprefix("/")
    prefix = "" if anchored else "(?:.*/)?"
    try:
        return _Rule(re.compile(prefix + _expression(text), re.DOTALL), leaves_out, only_folders)
    except re.error:  # an open bracket, for example; git ignores such a pattern, too
        return None


def _expression(text: str) -> str:
    made, at = "", 0
    while at < len(text):
        if text.startswith("**/", at) and (at == 0 or text[at - 1] == "/"):
            made, at = made + "(?:.*/)?", at + 3
        elif text.startswith("/**", at) and at + 3 == len(text):
            made, at = made + "/.*", at + 3
        elif text[at] == "*":
            made, at = made + "[^/]*", at + 1
        elif text[at] == "?":
            made, at = made + "[^/]", at + 1
        elif text[at] == "[" and (end := text.find("]", at + 2)) > 0:
            inside = text[at + 1 : end]
            inside = "^" + inside[1:] if inside[0] in "!^" else inside
            escaped = inside.replace("\\", "\\\\").replace("[", "\\[")
            made, at = made + f"[{escaped}]", end + 1
        elif text[at] == "\\" and at + 1 < len(text):
            made, at = made + re.escape(text[at + 1]), at + 2
        else:
            made, at = made + re.escape(text[at]), at + 1
    return made
