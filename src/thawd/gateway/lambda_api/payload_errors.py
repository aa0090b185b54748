"""Says where and why a payload is not JSON, in the words of the parser that AWS Lambda uses (Jackson). No side effects.

The errors that occur in practice have AWS's words; rare ones, such as a malformed number, have thawd's.

Source: Jackson's error texts as AWS Lambda's answers contain them.
"""

from __future__ import annotations

import re

_LONGEST_BYTES = 16_384
_VALUES = "(JSON String, Number, Array, Object or token 'null', 'true' or 'false')"
_PLACE = "[Source: REDACTED (`StreamReadFeature.INCLUDE_SOURCE_IN_LOCATION` disabled); line: {}, column: {}]"
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[^\W\d][\w$]*")
_STRING_PART = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')


class _Found(Exception):
    """The first error was found."""


def describe(payload: bytes, *, otherwise: str) -> str:
    """The first error in a payload that is not JSON.

    Args:
        payload: the payload; it is not JSON text in UTF-8.
        otherwise: what to say about a payload that is too long to be read here without delaying other requests.
    """
    if len(payload) > _LONGEST_BYTES:
        return otherwise
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return _not_utf8(payload, error)
    scanner = _Scanner(text)
    try:
        scanner.scan()
    except _Found as found:
        return str(found)
    return otherwise


def _not_utf8(payload: bytes, error: UnicodeDecodeError) -> str:
    before = payload[: error.start].decode()
    code = payload[error.start]
    place = _Scanner(before).place(len(before))
    if not before.strip(" \t\n\r"):
        return f"Unexpected character ((CTRL-CHAR, code {code})): expected a valid value {_VALUES}\n at {place}"
    line, column = before.count("\n") + 1, error.start - (payload.rfind(b"\n", 0, error.start) + 1) + 2
    return f"Invalid UTF-8 start byte 0x{code:x}\n at {_PLACE.format(line, column)}"


class _Scanner:
    """Reads JSON text up to its first error. It keeps its own stack, so deep nesting is no problem.

    Args:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._open: list[tuple[str, int]] = []
        self._is_new = False  # whether the innermost object or array has just begun

    def place(self, at: int) -> str:
        """A position as Jackson words it: the line and the column, which count from 1."""
        start = self._text.rfind("\n", 0, at) + 1
        return _PLACE.format(self._text.count("\n", 0, at) + 1, at - start + 1)

    def _fail(self, message: str, at: int) -> _Found:
        return _Found(f"{message}\n at {self.place(at)}")

    def _unexpected(self, wanted: str) -> _Found:
        character = self._text[self._at]
        code = ord(character)
        shown = f"(CTRL-CHAR, code {code})" if code < 32 else f"'{character}' (code {code})"
        return self._fail(f"Unexpected character ({shown}): {wanted}", self._at)

    def _peek(self) -> str:
        """The next character that is not white space, or an empty text."""
        space = _SPACE.match(self._text, self._at)
        assert space is not None
        self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _kind(self) -> str:
        return "root" if not self._open else "Array" if self._open[-1][0] == "[" else "Object"

    def _ended(self, *, between: bool) -> _Found:
        if not self._open:
            return self._fail("No content to map due to end-of-input", self._at)
        if between:
            return self._fail(f"Unexpected end-of-input within/between {self._kind()} entries", self._at)
        marker = self.place(self._open[-1][1])
        return self._fail(
            f"Unexpected end-of-input: expected close marker for {self._kind()} (start marker at {marker})", self._at
        )

    def scan(self) -> None:
        """Read the text.

        Raises:
            _Found: its first error, as the exception's text.
        """
        self._value(after_comma=False)
        while self._open:
            is_first, self._is_new = self._is_new, False
            self._entry(is_first=is_first)
        if self._peek():
            raise self._fail(f"Trailing token: expected the end of the payload after {_VALUES}", self._at)

    def _entry(self, *, is_first: bool) -> None:
        """Read the rest of an object or array up to its next value, or its end."""
        is_array = self._open[-1][0] == "["
        character = self._peek()
        if not character:
            raise self._ended(between=False)
        if character == ("]" if is_array else "}"):
            self._at += 1
            self._open.pop()
            return
        if not is_first:
            if character != ",":
                raise self._unexpected(f"was expecting comma to separate {self._kind()} entries")
            self._at += 1
        if not is_array:
            self._name()
        self._value(after_comma=not is_first or not is_array)

    def _name(self) -> None:
        character = self._peek()
        if not character:
            raise self._ended(between=True)
        if character != '"':
            raise self._unexpected("was expecting double-quote to start field name")
        self._string("in field name")
        character = self._peek()
        if not character:
            raise self._ended(between=True)
        if character != ":":
            raise self._unexpected("was expecting a colon to separate field name and value")
        self._at += 1

    def _value(self, *, after_comma: bool) -> None:
        character = self._peek()
        if not character:
            raise self._ended(between=after_comma)
        if character in "[{":
            self._open.append((character, self._at))
            self._at += 1
            self._is_new = True
        elif character == '"':
            self._string("in VALUE_STRING")
        elif character == "-" or character.isdecimal():
            self._number()
        else:
            self._token()

    def _token(self) -> None:
        word = _WORD.match(self._text, self._at)
        if word is None:
            raise self._unexpected(f"expected a valid value {_VALUES}")
        if word[0] in ("null", "true", "false"):
            self._at = word.end()
            return
        end = min(word.end() + 1, len(self._text))
        if word[0] in ("NaN", "Infinity"):
            raise self._fail(
                f"Non-standard token '{word[0]}': enable `JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS` to allow", end
            )
        raise self._fail(f"Unrecognized token '{word[0]}': was expecting {_VALUES}", end)

    def _number(self) -> None:
        number = _NUMBER.match(self._text, self._at)
        if number is None:
            raise self._fail("Invalid numeric value: a digit must follow the minus sign", self._at + 1)
        after = self._text[number.end() : number.end() + 1]
        if number[0] in ("0", "-0") and after.isdecimal():
            raise self._fail("Invalid numeric value: Leading zeroes not allowed", number.end())
        if after and after not in " \t\r\n,]}":
            self._at = number.end()
            raise self._unexpected("Expected space separating root-level values")
        self._at = number.end()

    def _string(self, where: str) -> None:
        at = self._at + 1
        while True:
            part = _STRING_PART.match(self._text, at)
            assert part is not None
            at = part.end()
            character = self._text[at : at + 1]
            if character == '"':
                self._at = at + 1
                return
            if not character:
                raise self._fail(f"Unexpected end-of-input {where}", at)
            if character != "\\":
                raise self._fail(
                    f"Illegal unquoted character ((CTRL-CHAR, code {ord(character)})): has to be escaped using "
                    "backslash to be included in string value",
                    at + 1,
                )
            escape = _ESCAPE.match(self._text, at)
            if escape is None:
                escaped = self._text[at + 1 : at + 2]
                if not escaped:
                    raise self._fail("Unexpected end-of-input in character escape sequence", at + 1)
                raise self._fail(f"Unrecognized character escape '{escaped}' (code {ord(escaped)})", at + 2)
            at = escape.end()
