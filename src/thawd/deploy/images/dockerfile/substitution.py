"""Substitutes variables in the words of a Dockerfile's instructions, and removes their quotes.

Source: https://docs.docker.com/reference/dockerfile/ ("Environment replacement").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:?[-+?])?")


class SubstitutionError(Exception):
    """A word cannot be evaluated; the message says why."""


def substitute(word: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Return a word with its variables substituted, and without its quotes and escapes.

    ``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``${NAME:+other}``, ``${NAME:?error}`` and their forms without the
    colon are known. A variable that is not set is empty. In single quotes, nothing is substituted.

    Args:
        word: the word as it is written.
        variables: names and values.
        escape: the escape character.

    Raises:
        SubstitutionError: a form is unknown or incomplete, or a ``?`` demands a variable that is not set.
    """
    return _Word(word, variables, escape).value()


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Split a text at spaces outside of quotes. The words keep their quotes and escapes."""
    words: list[str] = []
    word, quote, at = "", "", 0
    while at < len(text):
        char = text[at]
        if char == escape and at + 1 < len(text) and quote != "'":
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in " \t\n":
            if word:
                words.append(word)
            word, char = "", ""
        word += char
        at += 1
    return [*words, word] if word else words


def pairs(text: str, escape: str = "\\") -> Iterator[tuple[str, str]]:
    """Yield the names and values of ENV and LABEL, as they are written: ``A=1 B="2 3"``, or the old form ``A 1 2 3``.

    Raises:
        SubstitutionError: a name has no value.
    """
    words = split_words(text, escape)
    if "=" not in words[0]:
        if len(words) < 2:
            raise SubstitutionError(f"{words[0]} has no value; write {words[0]}=VALUE")
        yield words[0], text.strip()[len(words[0]) :].strip()
        return
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise SubstitutionError(f"{word!r} is not of the form NAME=VALUE; put a value with spaces into quotes")
        yield name, value


class _Word:
    """One word while it is evaluated."""

    def __init__(self, text: str, variables: Mapping[str, str], escape: str) -> None:
        self._text = text
        self._variables = variables
        self._escape = escape
        self._at = 0

    def value(self) -> str:
        found = self._until("")
        if self._at < len(self._text):
            raise SubstitutionError(f"{self._text!r} has a }} too many")
        return found

    def _until(self, end: str) -> str:
        value, quoted = "", False
        while self._at < len(self._text):
            char = self._text[self._at]
            if end and char == end and not quoted:
                return value
            self._at += 1
            if char == self._escape:
                value += self._escaped(quoted)
            elif char == "$":
                value += self._variable()
            elif char == '"':
                quoted = not quoted
            elif char == "'" and not quoted:
                closing = self._text.find("'", self._at)
                if closing < 0:
                    raise SubstitutionError(f"{self._text!r} has a quote that does not end")
                value += self._text[self._at : closing]
                self._at = closing + 1
            else:
                value += char
        if quoted:
            raise SubstitutionError(f"{self._text!r} has a quote that does not end")
        if end:
            raise SubstitutionError(f"{self._text!r} has a ${{ without its }}")
        return value

    def _escaped(self, quoted: bool) -> str:
        char = self._text[self._at : self._at + 1]
        self._at += 1
        if quoted and char not in ('"', "$", self._escape):
            return self._escape + char
        return char

    def _variable(self) -> str:
        if self._text[self._at : self._at + 1] != "{":
            found = _NAME.match(self._text, self._at)
            if found is None:
                return "$"
            self._at = found.end()
            return self._variables.get(found[0], "")
        found = _BRACED.match(self._text, self._at + 1)
        if found is None:
            raise SubstitutionError(f"{self._text!r}: after ${{ the name of a variable is expected")
        self._at = found.end()
        name, operator = found[1], found[2] or ""
        if not operator and self._text[self._at : self._at + 1] not in ("}", ""):
            raise SubstitutionError(
                f"{self._text!r}: the form ${{{name}{self._text[self._at]}...}} is not known; :- :+ :? are"
            )
        argument = self._until("}")
        self._at += 1
        present = name in self._variables and not (operator.startswith(":") and not self._variables[name])
        if operator.endswith("+"):
            return argument if present else ""
        if operator.endswith("-"):
            return self._variables[name] if present else argument
        if operator.endswith("?") and not present:
            raise SubstitutionError(f"{name} is not set: {argument or 'it is required'}")
        return self._variables.get(name, "")
