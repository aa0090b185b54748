"""Replaces secret values in events, answers and texts, before they are stored or shown. No side effects.

Rules name keys (``server.redact``). The value of a key that a rule names is replaced, whatever it is: in JSON objects
at any depth, in JSON inside strings (API Gateway's ``body``, an SNS ``Message``), in forms and query strings, and in
texts such as ``password=...`` or ``token: ...``. Base64 text that decodes to something with such a key is replaced
whole. A value that was replaced in an event is replaced in the invocation's answer and error message, too. The
server's own secrets are replaced wherever they occur.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_plus

import msgspec

MARK = "[redacted]"
"""What stands in the place of a redacted value."""
# A value shorter than this, replaced in an event, is not looked for in the answer: it would occur there by chance.
_SHORTEST_VALUE = 4
_SHORTEST_PART = 8
_DEEPEST = 40
# Most characters that a star stands for in a text. Without a limit, a text could make the search take minutes.
_MOST_STARRED = 100
# Of a larger event, only the keys of its JSON objects are looked at.
_MOST_SEARCHED = 64 << 10
# Whether a rule names a key is remembered for this many keys of up to this many characters.
_MOST_KEYS = 1000
_LONGEST_KEY = 64
# If more values than this must not occur in a text, it is replaced as a whole: looking for them would take seconds.
_MOST_VALUES = 200
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_SCHEMES = ("Bearer ", "Basic ", "bearer ", "basic ")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Redactor:
    """Applies rules.

    Args:
        names: names of keys and headers; case does not matter, and ``*`` stands for any characters.
        secrets: values to replace wherever they occur: the server's own keys.
    """

    def __init__(self, names: Iterable[str], *, secrets: Iterable[str] = ()) -> None:
        names = list(names)
        self._secrets = tuple(sorted((secret for secret in secrets if secret), key=len, reverse=True))
        patterns = [".*?".join(map(re.escape, name.split("*"))) for name in names if name]
        # Underscores and hyphens are the same, because a header's name and a variable's name differ in them.
        patterns = [re.sub(r"(?:_|\\-|-)", "[-_]?", pattern) for pattern in patterns]
        alternatives = "|".join(patterns)
        # A text without any of these, in small letters, has no pair that a rule names. Searching for them is quick.
        self._needles = {max(re.split(r"[*_-]", name.lower()), key=len) for name in names if name}
        self._known: dict[str, bool] = {}
        self._name = re.compile(f"(?:{alternatives})", re.IGNORECASE | re.DOTALL) if patterns else None
        words = "|".join(pattern.replace(".*?", rf"[\w-]{{0,{_MOST_STARRED}}}?") for pattern in patterns)
        self._pair = (
            re.compile(
                rf"""(?P<key>(?<![\w-])(?:{words})(?![\w-])\\*["']?\s*(?:=|:|%3[dD]|%3[aA])\s*)"""
                r"""(?P<value>(?:Bearer |Basic )?(?:\\*"[^"]*"|'[^']*'|[^\s&;,"'{}\[\]]+))""",
                re.IGNORECASE,
            )
            if patterns
            else None
        )

    def names(self, key: str) -> bool:
        """Whether a rule names this key."""
        found = self._known.get(key)
        if found is None:
            found = self._name is not None and self._name.fullmatch(key) is not None
            if len(self._known) < _MOST_KEYS and len(key) <= _LONGEST_KEY:
                self._known[key] = found
        return found

    def text(self, text: str, *, values: Iterable[str] = ()) -> str:
        """Redact a text: the server's secrets, `values`, and the values of pairs such as ``password=...``."""
        ordered = _longest_first(values)
        return MARK if len(ordered) > _MOST_VALUES else self._text(text, ordered)

    def start_of(self, text: str, longest: int, *, values: Iterable[str] = ()) -> str:
        """Redact the start of a text; see `text`.

        Args:
            text: a text that may have been cut to `longest` characters before.
            longest: length of the start that is redacted, characters. The result is shorter if a secret could have been
                cut there: no beginning of a secret is left.
            values: values that must not occur in it.
        """
        known = list(values)
        start = self.text(text[:longest], values=known)
        if len(text) < longest:
            return start
        return start[: -max(map(len, (*self._secrets, *known)), default=0) or None] or MARK

    def _text(self, text: str, values: tuple[str, ...]) -> str:
        for value in (*self._secrets, *values):
            if value in text:
                text = text.replace(value, MARK)
        if self._pair is None or not self._may_have_pair(text):
            return text
        return self._pair.sub(_without_value, text)

    def _may_have_pair(self, text: str) -> bool:
        if "=" not in text and ":" not in text and "%3" not in text:
            return False
        small = text.lower()
        return any(needle in small for needle in self._needles)

    def body(self, body: bytes, *, values: Iterable[str] = ()) -> tuple[bytes, frozenset[str]]:
        """Redact an event or an answer.

        Args:
            body: JSON text, or any other bytes, which are redacted as text.
            values: values that must not occur in it, for example those that were redacted in the event.

        Returns:
            The redacted body, or `body` itself if nothing was redacted; and the values that a rule named.
        """
        found: set[str] = set()
        known = _longest_first(values)
        if len(known) > _MOST_VALUES:
            return _encode(MARK), frozenset()
        try:
            document = _decode(body)
        except (msgspec.DecodeError, RecursionError):
            text = body.decode("utf-8", "replace")
            redacted = self._text(text, known)
            return (body if redacted == text else redacted.encode()), frozenset()
        try:
            changed = self._value(document, found, known, 0)
            # A value that one key names may stand elsewhere in the event, under another key.
            if len(known) + len(found) > _MOST_VALUES:
                return _encode(MARK), frozenset(found)
            if found:
                changed = self._value(changed, set(), _longest_first((*known, *found)), 0)
        except RecursionError:
            return _encode(MARK), frozenset()
        return (body, frozenset()) if changed is document else (_encode(changed), frozenset(found))

    def error(self, event: bytes, error: str) -> str:
        """Redact the error of an event, a document or a text: also the values that rules name in the event."""
        return self.body(error.encode("utf-8", "replace"), values=self.secrets_of(event))[0].decode()

    def secrets_of(self, event: bytes) -> frozenset[str]:
        """Return the values that rules name in an event, which must not occur in texts about the invocation either."""
        return self.values(event) if len(event) > _MOST_SEARCHED else self.body(event)[1]

    def values(self, event: bytes) -> frozenset[str]:
        """Return the values that rules name in an event that is too large to be stored."""
        small = event.lower()
        if not any(needle.encode() in small for needle in self._needles):
            return frozenset()
        found: set[str] = set()
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            self._find(_decode(event), found, 0)
        return frozenset(found)

    def _find(self, value: Any, found: set[str], depth: int) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                if self.names(key):
                    found.update(_findable(each))
                elif depth <= _DEEPEST:
                    self._find(each, found, depth + 1)
        elif isinstance(value, list):
            for each in value:
                self._find(each, found, depth + 1)

    def _value(self, value: Any, found: set[str], known: tuple[str, ...], depth: int) -> Any:
        """Return `value` redacted; the same object if nothing is to be redacted."""
        if isinstance(value, str):
            return self._string(value, found, known, depth)
        if isinstance(value, dict):
            changed = {key: self._entry(key, each, found, known, depth) for key, each in value.items()}
            return value if all(changed[key] is each for key, each in value.items()) else changed
        if isinstance(value, list):
            items = [self._value(each, found, known, depth + 1) for each in value]
            return value if all(map(_is, items, value)) else items
        return value

    def _entry(self, key: str, value: Any, found: set[str], known: tuple[str, ...], depth: int) -> Any:
        if value is not None and value != "" and self.names(key):
            if value != MARK:
                found.update(_findable(value))
                return MARK
            return value
        if depth > _DEEPEST:
            return MARK
        return self._value(value, found, known, depth + 1)

    def _string(self, text: str, found: set[str], known: tuple[str, ...], depth: int) -> str:
        if text[:1] in "{[" and text and depth <= _DEEPEST:
            try:
                inner = _decode(text)
            except (msgspec.DecodeError, RecursionError):
                pass
            else:
                changed = self._value(inner, found, known, depth + 1)
                return text if changed is inner else _encode(changed).decode()
        redacted = self._text(text, known)
        if redacted == text and self._pair is not None:
            if "%" in text and "=" in text and self._names_in_form(text, found):
                return MARK
            if _BASE64.fullmatch(text) and self._hides(text, known):
                return MARK
        return redacted

    def _names_in_form(self, text: str, found: set[str]) -> bool:
        """Whether a key of a form or query string is one that a rule names, though its name is percent-encoded."""
        for pair in text.split("&"):
            name, equals, value = pair.partition("=")
            if equals and value and self.names(unquote_plus(name)):
                found.add(unquote_plus(value))
                return True
        return False

    def _hides(self, text: str, known: tuple[str, ...]) -> bool:
        """Whether Base64 text decodes to text in which something is to be redacted."""
        try:
            decoded = base64.b64decode(text.replace("-", "+").replace("_", "/") + "==").decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return False
        body = decoded.encode()
        return self.body(body, values=known)[0] is not body


def _without_value(match: re.Match[str]) -> str:
    return match["key"] + MARK if match["value"].strip("\"'\\") != MARK else match[0]


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    """Return values in the order in which they are replaced: one may be a part of another."""
    return tuple(sorted(values, key=len, reverse=True))


def _findable(value: Any) -> Iterable[str]:
    """All texts and numbers in a redacted value, and parts of them that handlers use alone, if they are long enough."""
    for each in _texts(value):
        if len(each) >= _SHORTEST_VALUE and each != MARK:
            yield each
            yield from (part for part in _parts(each) if len(part) >= _SHORTEST_PART and part != MARK)


def _parts(value: str) -> Iterable[str]:
    """The credentials in ``Bearer ...``, the values of cookies, and the lines of a text, which logs have one by one."""
    if "\n" in value:
        yield from value.splitlines()
    elif "=" in value:
        yield from (pair.partition("=")[2] for pair in value.split("; "))
    yield value.partition(" ")[2] if value.startswith(_SCHEMES) else ""


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


_is: Callable[[Any, Any], bool] = lambda one, other: one is other  # noqa: E731
