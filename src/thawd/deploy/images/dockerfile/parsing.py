"""Parses a Dockerfile into instructions: lines with their continuations, flags, JSON and shell forms, heredocs.

Source: https://docs.docker.com/reference/dockerfile/ ("Format", "Parser directives", "Here-Documents").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from thawd.errors import ImageError

_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(.+?)\s*")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")
_HEREDOC = re.compile(r"(?<![<\w])<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_.]*)\2")
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")
_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Heredoc:
    """Text that is written in the Dockerfile itself.

    Attributes:
        name: the word that ends it; for COPY and ADD, the name of the file.
        content: the text.
        expands: whether variables in it are substituted (COPY, ADD).
    """

    name: str
    content: str
    expands: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        keyword: in capitals, such as ``COPY``.
        rest: what follows the keyword and the flags, in one line; for RUN with the heredocs' lines.
        flags: flags with their values; a flag without a value has the value ``true``. A flag may be repeated.
        line: number of the line with the keyword, from 1.
        words: elements of the JSON form; None: shell form.
        heredocs: texts that follow.
    """

    keyword: str
    rest: str
    flags: tuple[tuple[str, str], ...]
    line: int
    words: tuple[str, ...] | None = None
    heredocs: tuple[Heredoc, ...] = ()


@dataclass(slots=True)
class Dockerfile:
    """A parsed Dockerfile.

    Attributes:
        path: the file, for messages.
        escape: character that continues lines and escapes others: backslash or backtick.
        instructions: the instructions in their order.
    """

    path: Path
    escape: str = "\\"
    instructions: list[Instruction] = field(default_factory=list)

    def error(self, line: int, message: str) -> ImageError:
        """Return an error at a line."""
        return ImageError(f"{self.path}, line {line}: {message}")


def parse(text: str, path: Path) -> Dockerfile:
    """Parse a Dockerfile.

    Args:
        text: its content.
        path: the file, for messages.

    Raises:
        ImageError: it is not a Dockerfile; the message names the line (HTTP 400).
    """
    if len(text) > _LARGEST_BYTES:
        raise ImageError(f"{path} has more than {_LARGEST_BYTES:,} characters; is it a Dockerfile?")
    if "\0" in text:
        raise ImageError(f"{path} has bytes of zero; is it a Dockerfile?")
    file = Dockerfile(path)
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    file.escape = _escape(file, lines)
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        file.instructions.append(_instruction(file, number, _joined(file, line, numbered), numbered))
    if not file.instructions:
        raise ImageError(f"{path} has no instruction; a Dockerfile begins with FROM")
    return file


def _escape(file: Dockerfile, lines: list[str]) -> str:
    """Return the escape character. Directives are comments above everything else."""
    for number, line in enumerate(lines, 1):
        found = _DIRECTIVE.fullmatch(line.strip())
        if found is None:
            break
        name, value = found[1].lower(), found[2]
        if name == "escape":
            if value not in ("\\", "`"):
                raise file.error(number, f"escape is {value!r}; a backslash or a backtick is allowed")
            return value
        if name not in ("syntax", "check"):
            break
    return "\\"


def _joined(file: Dockerfile, line: str, numbered: Iterator[tuple[int, str]]) -> str:
    """Join a line with those that continue it. Comments and empty lines between them are left out."""
    joined = ""
    ends = re.compile(rf"(?<!{re.escape(file.escape)}){re.escape(file.escape)}[ \t]*$")
    while True:
        found = ends.search(line)
        if found is None:
            return joined + line
        joined += line[: found.start()]
        for _, following in numbered:
            if following.strip() and not following.lstrip().startswith("#"):
                line = following
                break
        else:
            return joined


def _instruction(file: Dockerfile, number: int, line: str, numbered: Iterator[tuple[int, str]]) -> Instruction:
    keyword, _, rest = line.strip().partition(" ") if " " in line.strip() else line.strip().partition("\t")
    keyword = keyword.upper()
    if "\t" in keyword:
        keyword, _, before = keyword.partition("\t")
        rest = f"{before} {rest}"
    if not re.fullmatch(r"[A-Z]+", keyword):
        raise file.error(number, f"{keyword[:40]!r} is not an instruction")
    rest = rest.strip()
    flags: list[tuple[str, str]] = []
    while keyword not in ("ENV", "LABEL", "ARG", "CMD", "ENTRYPOINT") and (found := _FLAG.match(rest)):
        flags.append((found[1], "true" if found[2] is None else found[2]))
        rest = rest[found.end() :]
    heredocs: tuple[Heredoc, ...] = ()
    if keyword in _WITH_HEREDOCS and not rest.startswith("["):
        heredocs, lines = _heredocs(file, number, rest, numbered)
        if keyword == "RUN" and heredocs:
            rest = "\n".join([rest, *lines])
    if not rest and keyword not in ("CMD", "ENTRYPOINT"):
        raise file.error(number, f"{keyword} has nothing after it")
    words = _json_form(rest)
    if words is not None and not all(_can_be_argument(word) for word in words):
        raise file.error(number, f"{keyword} has a character in its JSON form that no argument can have")
    return Instruction(keyword, rest, tuple(flags), number, words, heredocs)


def _heredocs(
    file: Dockerfile, number: int, rest: str, numbered: Iterator[tuple[int, str]]
) -> tuple[tuple[Heredoc, ...], list[str]]:
    found: list[Heredoc] = []
    lines: list[str] = []
    for dash, quote, name in _HEREDOC.findall(rest):
        content: list[str] = []
        for _, line in numbered:
            lines.append(line)
            if (line.lstrip("\t") if dash else line) == name:
                break
            content.append(line.lstrip("\t") if dash else line)
        else:
            raise file.error(number, f"the text <<{name} has no end: a line with {name} alone is missing")
        found.append(Heredoc(name, "".join(f"{line}\n" for line in content), not quote))
    return tuple(found), lines


def _json_form(rest: str) -> tuple[str, ...] | None:
    """Return the elements of the JSON form. Anything but a list of strings is the shell form, as in Docker."""
    if not rest.startswith("["):
        return None
    try:
        elements = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    if not isinstance(elements, list) or not all(isinstance(element, str) for element in elements):
        return None
    return tuple(elements)


def _can_be_argument(word: str) -> bool:
    """Whether a process can get a text as an argument: it has no NUL, and is one in UTF-8."""
    return "\0" not in word and not any("\ud800" <= char <= "\udfff" for char in word)
