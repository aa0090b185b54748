"""Filter patterns of CloudWatch Logs, which select messages. No side effects.

Three kinds are supported: terms (``ERROR``, ``"a phrase"``, ``?this ?that``, ``-"not this"``), JSON patterns
(``{ $.level = "ERROR" && $.took > 5 }``), and patterns for space-delimited fields (``[ip, user, ...]``,
`thawd.grammar.space_delimited_filters`). Regular expressions are refused, because they could block the whole server.
The time to match a message is proportional to its length.

Source: CloudWatch Logs user guide, "Filter pattern syntax for metric filters, subscription filters, filter log events,
and Live Tail".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from thawd.grammar import space_delimited_filters
from thawd.grammar.wildcards import is_like

Wanted = Callable[[str], bool]

MAX_PATTERN_CHARACTERS = 1024
_MAX_DEPTH = 20
_TERM = re.compile(r'([?-]?)(?:"((?:[^"\\]|\\.)*)"|([^\s"]+))(?=\s|$)')
_PLAIN = re.compile(r"[^\W]+")
_TOKEN = re.compile(
    r"""\s*(?:(?P<path>\$(?:\.[\w-]+|\[(?:\d+|"[^"]*"|'[^']*')\])+)
    |(?P<and>&&)|(?P<or>\|\|)|(?P<open>\()|(?P<close>\))|(?P<comparison>!=|>=|<=|=|>|<)
    |(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[^\s()=<>!&|"]+))""",
    re.VERBOSE,
)
_STEP = re.compile(r"""\.([\w-]+)|\[(\d+)\]|\[["']([^"']*)["']\]""")
_MISSING = object()
_NO_EXPRESSIONS = "regular expressions (%...%) are not supported; use terms or a JSON pattern"


class FilterPatternError(ValueError):
    """A text is not a filter pattern; the message says what is wrong with it."""


def parse(pattern: str) -> Wanted:
    """Parse a pattern into a function that returns whether a message matches. An empty pattern matches every message.

    Raises:
        FilterPatternError: the text is not a pattern.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise FilterPatternError(f"it has {len(pattern)} characters; at most {MAX_PATTERN_CHARACTERS} are allowed")
    pattern = pattern.strip()
    if not pattern:
        return lambda message: True
    if pattern.startswith("{"):
        if not pattern.endswith("}"):
            raise FilterPatternError("a JSON pattern must end with }")
        matches = _Json(pattern[1:-1]).parse()
        return lambda message: _matches_json(matches, message)
    if pattern.startswith("["):
        try:
            return space_delimited_filters.parse(pattern)
        except space_delimited_filters.SpaceDelimitedError as error:
            raise FilterPatternError(str(error)) from None
    return _terms(pattern)


def _terms(pattern: str) -> Wanted:
    required: list[Wanted] = []
    optional: list[Wanted] = []
    position = 0
    while position < len(pattern):
        match = _TERM.match(pattern, position)
        if match is None:
            raise FilterPatternError(f"unexpected characters at {pattern[position : position + 20]!r}")
        sign, phrase, word = match.groups()
        if word is not None and word.startswith("%"):
            raise FilterPatternError(_NO_EXPRESSIONS)
        if word is not None and not _PLAIN.fullmatch(word):
            raise FilterPatternError(f"Invalid character(s) in term '{word}'")
        holds = _contains(word if phrase is None else re.sub(r"\\(.)", r"\1", phrase))
        if sign == "?":
            optional.append(holds)
        else:
            required.append(_not(holds) if sign == "-" else holds)
        position = match.end()
        while position < len(pattern) and pattern[position].isspace():
            position += 1
    if required:  # as in CloudWatch, terms with a question mark are ignored if there are other terms
        return lambda message: all(holds(message) for holds in required)
    return lambda message: any(holds(message) for holds in optional)


def _contains(text: str) -> Wanted:
    return lambda message: text in message


def _not(holds: Wanted) -> Wanted:
    return lambda message: not holds(message)


def _matches_json(matches: Callable[[Any], bool], message: str) -> bool:
    if not message.lstrip().startswith("{"):
        return False
    try:
        return matches(json.loads(message))
    except (ValueError, RecursionError):
        return False


class _Json:
    """Recursive-descent parser for a JSON pattern's condition. ``&&`` has precedence over ``||``."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise FilterPatternError(f"unexpected characters at {text[position : position + 20]!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        self._at = 0
        self._depth = 0

    def parse(self) -> Callable[[Any], bool]:
        condition = self._either()
        if self._at < len(self._tokens):
            raise FilterPatternError(f"unexpected {self._tokens[self._at][1]!r}; join conditions with && or ||")
        return condition

    def _next(self, *kinds: str) -> str | None:
        """Consume and return the next token if it is one of `kinds`. Otherwise, return None."""
        if self._at < len(self._tokens) and self._tokens[self._at][0] in kinds:
            self._at += 1
            return self._tokens[self._at - 1][1]
        return None

    def _either(self) -> Callable[[Any], bool]:
        conditions = [self._both()]
        while self._next("or"):
            conditions.append(self._both())
        return lambda document: any(condition(document) for condition in conditions)

    def _both(self) -> Callable[[Any], bool]:
        conditions = [self._single()]
        while self._next("and"):
            conditions.append(self._single())
        return lambda document: all(condition(document) for condition in conditions)

    def _single(self) -> Callable[[Any], bool]:
        if self._next("open"):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise FilterPatternError("parentheses are nested too deep")
            condition = self._either()
            if not self._next("close"):
                raise FilterPatternError("a parenthesis is not closed")
            self._depth -= 1
            return condition
        path = self._next("path")
        if path is None:
            raise FilterPatternError("a condition must begin with a selector such as $.level")
        steps = [name or key or int(index) for name, index, key in _STEP.findall(path)]
        words = []
        while (word := self._next("word")) is not None:
            words.append(word.upper())
        if words:
            return _state(steps, " ".join(words))
        return self._comparison(steps)

    def _comparison(self, steps: list[str | int]) -> Callable[[Any], bool]:
        comparison = self._next("comparison")
        if comparison is None:
            raise FilterPatternError("a selector must be followed by a comparison, IS, EXISTS or NOT EXISTS")
        kind = self._tokens[self._at][0] if self._at < len(self._tokens) else "end"
        value = self._next("text", "word")
        if value is None:
            raise FilterPatternError(f"{comparison} must be followed by a value")
        if kind == "word" and _number(value) is not None:
            return _compares_number(steps, comparison, float(value))
        if comparison not in ("=", "!="):
            raise FilterPatternError(f"{comparison} compares numbers, and {value} is not a number")
        if kind == "word" and value.startswith("%"):
            raise FilterPatternError(_NO_EXPRESSIONS)
        text = re.sub(r"\\(.)", r"\1", value[1:-1]) if kind == "text" else value
        return _compares_text(steps, re.split(r"\*+", text), equal=comparison == "=")


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) else None


def _find(document: Any, steps: list[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int):
            if not isinstance(document, list) or step >= len(document):
                return _MISSING
            document = document[step]
        else:
            if not isinstance(document, dict) or step not in document:
                return _MISSING
            document = document[step]
    return document


def _state(steps: list[str | int], words: str) -> Callable[[Any], bool]:
    known: dict[str, Callable[[Any], bool]] = {
        "IS NULL": lambda value: value is None,
        "IS TRUE": lambda value: value is True,
        "IS FALSE": lambda value: value is False,
        "EXISTS": lambda value: value is not _MISSING,
        "NOT EXISTS": lambda value: value is _MISSING,
    }
    holds = known.get(words)
    if holds is None:
        raise FilterPatternError(f"a selector cannot be followed by {words}; allowed: a comparison, {', '.join(known)}")
    return lambda document: holds(_find(document, steps))


def _compares_number(steps: list[str | int], comparison: str, bound: float) -> Callable[[Any], bool]:
    holds: Callable[[float], bool] = {
        "=": lambda value: value == bound,
        "!=": lambda value: value != bound,
        ">": lambda value: value > bound,
        "<": lambda value: value < bound,
        ">=": lambda value: value >= bound,
        "<=": lambda value: value <= bound,
    }[comparison]

    def matches(document: Any) -> bool:
        value = _find(document, steps)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return comparison == "!=" and value is not _MISSING
        return holds(value)

    return matches


def _compares_text(steps: list[str | int], pieces: list[str], *, equal: bool) -> Callable[[Any], bool]:
    def holds(document: Any) -> bool:
        value = _find(document, steps)
        if value is _MISSING:
            return False
        return is_like(value if isinstance(value, str) else json.dumps(value), pieces) == equal

    return holds
