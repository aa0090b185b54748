"""Cuts a Logs Insights query into tokens, and says where a query is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>ms|mo|[smhdwqy]|[a-z]+)?(?![\w@])
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<quoted>`[^`]*`)
    |(?P<name>@?[A-Za-z_][\w@]*(?:\.[\w@-]*\w)*)
    |(?P<sign>=~|!=|<=|>=|==|[=<>|,()\[\]*+\-/^%])""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# A slash begins a regular expression only after one of these tokens.
_BEFORE_REGEX = ("like", "=~", "parse", "[", ",")


class QueryError(ValueError):
    """A query cannot be understood.

    Attributes:
        start: offset of the first character that is wrong.
        end: offset after the last one.
    """

    def __init__(self, message: str, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        kind: ``number``, ``period``, ``text``, ``quoted``, ``name``, ``sign``, ``regex`` or ``end``.
        text: the token's text; of texts and regular expressions, what is between the delimiters.
        start: offset of its first character in the query.
        end: offset after its last character.
    """

    kind: str
    text: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these keywords; upper and lower case are the same."""
        return self.kind == "name" and self.text.lower() in words

    def is_sign(self, *signs: str) -> bool:
        """Whether the token is one of these signs."""
        return self.kind == "sign" and self.text in signs


def unexpected(query: str, token: Token) -> QueryError:
    """The error for a token that cannot be where it is."""
    if token.kind == "end":
        return QueryError("unexpected end of query", start=max(0, token.start - 1), end=token.start)
    return wrong(query, f"unexpected symbol found {query[token.start : token.end]}", token.start, token.end)


def wrong(query: str, what: str, start: int, end: int) -> QueryError:
    """The error for a part of a query; the message ends with the line and the position in it, which begin with 1."""
    line = query.count("\n", 0, start) + 1
    position = start - query.rfind("\n", 0, start)
    return QueryError(f"{what} at line {line} and position {position}", start=start, end=end)


def cut(query: str) -> list[Token]:
    """The tokens of a query; the last one has the kind ``end``.

    Raises:
        QueryError: a character belongs to no token.
    """
    tokens: list[Token] = []
    at = 0
    in_parse = False
    while at < len(query):
        if query[at] == "/" and _may_be_regex(tokens, in_parse=in_parse):
            match = _REGEX.match(query, at)
            if match is None:
                raise wrong(query, "a regular expression is not closed", at, len(query))
            tokens.append(Token("regex", match[1], at, match.end()))
            at = match.end()
            continue
        match = _TOKEN.match(query, at)
        if match is None or match.lastgroup is None:
            raise wrong(query, f"unexpected symbol found {query[at]}", at, at + 1)
        if match["space"] is None:
            tokens.append(_token(query, match))
            if tokens[-1].is_sign("|"):
                in_parse = False
            elif tokens[-1].is_word("parse") and (len(tokens) == 1 or tokens[-2].is_sign("|")):
                in_parse = True
        at = match.end()
    tokens.append(Token("end", "", len(query), len(query)))
    return tokens


def _token(query: str, match: re.Match[str]) -> Token:
    start, end = match.span()
    if match["number"] is not None:
        return Token("period" if match["unit"] else "number", query[start:end], start, end)
    if match["text"] is not None:
        return Token("text", _ESCAPED.sub(_unescaped, match["text"][1:-1]), start, end)
    if match["quoted"] is not None:
        return Token("quoted", match["quoted"][1:-1], start, end)
    kind = "name" if match["name"] is not None else "sign"
    return Token(kind, match[0], start, end)


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r"}.get(match[1], match[1])


def _may_be_regex(tokens: list[Token], *, in_parse: bool) -> bool:
    if not tokens:
        return False
    last = tokens[-1]
    if in_parse:
        return last.kind in ("name", "quoted")
    return last.text.lower() in _BEFORE_REGEX and last.kind in ("name", "sign")
