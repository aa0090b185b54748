"""Parses ``.env`` files: lines with names and values of environment variables.

The syntax is the common part of what python-dotenv, docker compose and shells read. Nothing is expanded: ``$`` and
backticks stand for themselves. No message contains a value or a name: both may be a secret, or a line of one.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[ \t]*(?:export[ \t]+)?(?P<name>[^\s=#'\"]+)[ \t]*=[ \t]*")
_BLANK = re.compile(r"[ \t]*(#[^\n]*)?(\n|\Z)")
_COMMENT = re.compile(r"(?:\A|[ \t])#")
_QUOTED = {
    "'": re.compile(r"'(?P<value>(?:[^'\\]|\\.)*)'", re.DOTALL),
    '"': re.compile(r'"(?P<value>(?:[^"\\]|\\.)*)"', re.DOTALL),
}
_ESCAPE = {"'": re.compile(r"\\(['\\])"), '"': re.compile(r"\\([\\'\"$`nrtabfv])")}
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


MOST_BYTES = 1 << 20
"""Size of the largest file."""


class EnvironmentFileError(ValueError):
    """A file that cannot be parsed.

    Attributes:
        line: number of the line, from 1.
        found: what is wrong there, without values and names.
    """

    def __init__(self, line: int, found: str) -> None:
        super().__init__(f"line {line}: {found}")
        self.line = line
        self.found = found


def parse(content: bytes) -> dict[str, tuple[str, int]]:
    """Return the value and the line number of each variable. Of several lines with one name, the last counts.

    Args:
        content: the file's bytes, UTF-8, with or without a byte order mark.

    Raises:
        EnvironmentFileError: a line is no assignment, a quote is not closed, the text is not UTF-8, or it is too large.
    """
    if len(content) > MOST_BYTES:
        raise EnvironmentFileError(1, f"more than {MOST_BYTES} bytes in all")
    text = _decoded(content).replace("\r\n", "\n")
    variables: dict[str, tuple[str, int]] = {}
    at, line = 0, 1
    while at < len(text):
        began = at
        if (blank := _BLANK.match(text, at)) is not None:
            at = blank.end()
            line += 1
            continue
        head = _NAME.match(text, at)
        if head is None:
            raise EnvironmentFileError(line, "no NAME=value")
        value, at = _value(text, head.end(), line)
        variables[head["name"]] = (value, line)
        line += text.count("\n", began, at)
    return variables


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise EnvironmentFileError(line, "bytes that are not UTF-8") from None  # the error contains the bytes
    if "\0" in text:
        raise EnvironmentFileError(text.count("\n", 0, text.index("\0")) + 1, "a NUL character")
    return text


def _value(text: str, at: int, line: int) -> tuple[str, int]:
    """Return the value that begins at `at`, and where the next line begins."""
    quote = text[at : at + 1]
    if quote not in _QUOTED:
        end = text.find("\n", at)
        plain = text[at:] if end < 0 else text[at:end]
        if (comment := _COMMENT.search(plain)) is not None and (comment.start() or text[at - 1] in " \t"):
            plain = plain[: comment.start()]
        return plain.rstrip(" \t"), len(text) if end < 0 else end + 1
    quoted = _QUOTED[quote].match(text, at)
    if quoted is None:
        raise EnvironmentFileError(line, f"a {quote} that is not closed")
    rest = _BLANK.match(text, quoted.end())
    if rest is None:
        raise EnvironmentFileError(line, f"text after the closing {quote}")
    value = _ESCAPE[quote].sub(lambda found: _LETTERS.get(found[1], found[1]), quoted["value"])
    return value, rest.end()
