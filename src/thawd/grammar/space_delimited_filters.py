"""Filter patterns of CloudWatch Logs for messages of fields that are separated by spaces. No side effects.

An example is ``[ip, user, ..., request = *.html*, status = 4* || status = 500, bytes > 1000]``. A field between square
brackets or quotation marks may contain spaces. ``...`` stands for any number of fields. The time to match a message is
proportional to its length.

Source: CloudWatch Logs user guide, "Filter pattern syntax", "Match terms in space-delimited log events".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from thawd.grammar.wildcards import is_like

_VISIBLE = re.compile(r"\S")
_WORD = re.compile(r"\S+")
# What ends a field that begins with one of these characters.
_CLOSING = {"[": "]", '"': '"'}
_CONDITION = re.compile(r'\s*([\w$.-]+)\s*(?:(!=|>=|<=|=|<|>)\s*("(?:[^"\\]|\\.)*"|[^\s&|"]+))?\s*')
_COMMA = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')  # outside of quotation marks
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_LONGEST_NUMBER = 40
_MOST_FIELDS = 100
# A message is cut into at most this many fields; the rest of it is left out.
_MOST_IN_MESSAGE = 1000

Holds = Callable[[str], bool]


class SpaceDelimitedError(ValueError):
    """A text is not such a pattern; the message says what is wrong with it."""


def parse(pattern: str) -> Holds:
    """Parse a pattern between square brackets into a function that returns whether a message matches.

    Raises:
        SpaceDelimitedError: the text is not such a pattern.
    """
    if not pattern.endswith("]"):
        raise SpaceDelimitedError("a pattern for space-delimited fields must end with ]")
    texts = [piece.strip() for piece in _COMMA.split(pattern[1:-1])]
    if len(texts) > _MOST_FIELDS or not all(texts):
        raise SpaceDelimitedError(f"a pattern names 1 to {_MOST_FIELDS} fields, separated by commas")
    if texts.count("...") > 1:
        raise SpaceDelimitedError("... can be used once")
    at = texts.index("...") if "..." in texts else None
    before = [_conditions(text) for text in (texts if at is None else texts[:at])]
    after = [] if at is None else [_conditions(text) for text in texts[at + 1 :]]

    def matches(message: str) -> bool:
        fields = _cut(message)
        count = len(before) + len(after)
        if len(fields) < count or (at is None and len(fields) != count):
            return False
        last = fields[len(fields) - len(after) :]
        return _all_hold(before, fields[: len(before)]) and _all_hold(after, last)

    return matches


def _cut(message: str) -> list[str]:
    found: list[str] = []
    closing = dict(_CLOSING)
    at = 0
    while len(found) < _MOST_IN_MESSAGE and (visible := _VISIBLE.search(message, at)) is not None:
        begin, first = visible.start(), visible[0]
        end = message.find(closing[first], begin + 1) if first in closing else -1
        if end >= 0:
            found.append(message[begin + 1 : end])
            at = end + 1
            continue
        closing.pop(first, None)  # so that the rest of the message is not searched again for each such field
        word = _WORD.match(message, begin)
        assert word is not None
        found.append(word[0])
        at = word.end()
    return found


def _all_hold(conditions: Sequence[Holds], fields: Sequence[str]) -> bool:
    return all(holds(field) for holds, field in zip(conditions, fields, strict=True))


def _conditions(text: str) -> Holds:
    """The conditions for one field: its name alone, or comparisons that are joined by ``&&`` and ``||``."""
    either: list[list[Holds]] = [[]]
    name: str | None = None
    at = 0
    while True:
        match = _CONDITION.match(text, at)
        if match is None:
            raise SpaceDelimitedError(f"unexpected characters at {text[at : at + 20]!r}")
        if name is not None and match[1] != name:
            raise SpaceDelimitedError(f"the conditions of one field must have one name, not {name} and {match[1]}")
        name = match[1]
        either[-1].append((lambda field: True) if match[2] is None else _comparison(match[2], match[3]))
        at = match.end()
        if at == len(text):
            return lambda field: any(all(holds(field) for holds in both) for both in either)
        if text.startswith("||", at):
            either.append([])
        elif not text.startswith("&&", at):
            raise SpaceDelimitedError(f"unexpected characters at {text[at : at + 20]!r}")
        at += 2


def _comparison(sign: str, text: str) -> Holds:
    if text.startswith("%"):
        raise SpaceDelimitedError("regular expressions (%...%) are not supported; use * as a wildcard")
    is_quoted = text.startswith('"')
    value = re.sub(r"\\(.)", r"\1", text[1:-1]) if is_quoted else text
    if sign in ("=", "!="):
        pieces = re.split(r"\*+", value)
        return lambda field: is_like(field, pieces) == (sign == "=")
    bound = None if is_quoted else _number(value)
    if bound is None:
        raise SpaceDelimitedError(f"{sign} compares numbers, and {value} is not a number")
    compare: Callable[[float], bool] = {
        "<": lambda number: number < bound,
        "<=": lambda number: number <= bound,
        ">": lambda number: number > bound,
        ">=": lambda number: number >= bound,
    }[sign]
    return lambda field: (number := _number(field)) is not None and compare(number)


def _number(text: str) -> float | None:
    return float(text) if len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text) else None
