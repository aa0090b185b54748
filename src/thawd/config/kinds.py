"""Kinds of values: each combines a check of an option's value with a text that describes the allowed values.

Users read the text in errors and in the documentation, so each kind makes the check and the text from the same numbers.
This module does not know which options exist (`thawd.config.options` defines them), and does not read the file.
"""

from __future__ import annotations

import ipaddress
import json
import re
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thawd.grammar import queue_names

_SHOWN_CHARACTERS = 80
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_HANDLER = re.compile(r"\S{1,128}")
_VERSION = re.compile(r"\d+(\.\d+)*")

OLDEST_PYTHON = (3, 9)
"""Oldest Python version that `thawd.runtime` supports."""
NEWEST_PYTHON = (3, 14)
"""Newest Python version that `thawd.runtime` supports."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
        allowed: the allowed values in words; completes "allowed: ..." in an error.
        accepts: returns whether a value, as TOML parses it, is allowed.
        textual: whether allowed values are texts. An error about a value of the wrong type names that type: "the text
            ..." if `textual` is false, "the number ..." if it is true.
        secret: whether values must never be shown.
    """

    allowed: str
    accepts: Callable[[object], bool]
    textual: bool = False
    secret: bool = False

    def describe(self, value: object) -> str:
        """Describe, in words for the user, a value that was refused."""
        if self.secret:
            return _type_words(value) + " (not shown)"
        if isinstance(value, str) and not self.textual:
            return f"the text {spell(value)}"
        if isinstance(value, int | float) and not isinstance(value, bool) and self.textual:
            return f"the number {spell(value)}"
        return spell(value)


def spell(value: object) -> str:
    """Return a value as TOML writes it. Long values are shortened or described."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "..."
        return json.dumps(shown, ensure_ascii=False)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "a whole number of more than 30 digits"
    if isinstance(value, float):
        return repr(value)
    return _type_words(value)


def _type_words(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, Mapping):
        return "an empty table" if not value else "a table"
    if isinstance(value, list):
        return "an empty list" if not value else f"a list of {len(value)}"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, int | float):
        return "a number"
    return f"the date or time {value}"


def whole(low: int, high: int) -> Kind:
    """Return the kind of whole numbers from `low` to `high`. Booleans do not count as numbers."""
    return Kind(
        f"a whole number from {low} to {high}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
    )


def number(low: int, high: int) -> Kind:
    """Return the kind of numbers from `low` to `high`, with or without decimals. ``nan`` and ``inf`` are refused."""
    return Kind(
        f"a number from {low} to {high}",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
    )


def flag() -> Kind:
    """Return the kind of the values ``true`` and ``false``."""
    return Kind("true or false", lambda value: isinstance(value, bool))


def table(allowed: str, *, secret: bool = False) -> Kind:
    """Return the kind of TOML tables with any contents."""
    return Kind(allowed, lambda value: isinstance(value, dict), secret=secret)


def list_of(allowed: str, *, least: int = 0) -> Kind:
    """Return the kind of lists of at least `least` values; the values can be of any kind."""
    return Kind(allowed, lambda value: isinstance(value, list) and len(value) >= least)


def text(allowed: str, matches: Callable[[str], object] = lambda _: True, *, secret: bool = False) -> Kind:
    """Return the kind of texts that `matches` accepts.

    Texts with a NUL character are refused, because paths and environment variables cannot contain it.
    """
    return Kind(
        allowed,
        lambda value: isinstance(value, str) and "\0" not in value and bool(matches(value)),
        textual=True,
        secret=secret,
    )


def pattern(allowed: str, regular_expression: str) -> Kind:
    """Return the kind of texts that `regular_expression` matches completely."""
    return text(allowed, re.compile(regular_expression).fullmatch)


def choice(*texts: str) -> Kind:
    """Return a kind that allows only the given texts."""
    return text(" or ".join(map(spell, texts)), lambda value: value in texts)


def folder() -> Kind:
    """Return the kind of paths of folders. `thawd.config.path_checks` checks what exists at them."""
    return text("a path of a folder", len)


def file() -> Kind:
    """Return the kind of paths of files. `thawd.config.path_checks` checks what exists at them."""
    return text("a path of a file", len)


def event() -> Kind:
    """Return the kind of events: a table that contains the event, or the path of a JSON file that contains it."""
    return Kind(
        "a table, or a path of a JSON file",
        lambda value: isinstance(value, dict) or (isinstance(value, str) and value != "" and "\0" not in value),
        textual=True,
    )


def route() -> Kind:
    """Return the kind of targets of a route: the name of a function, or a table with further options."""
    return Kind(
        'the name of a function of this file, or a table such as { function = "classify", payload_format = "1.0" }',
        lambda value: isinstance(value, str | dict),
        textual=True,
    )


def queue() -> Kind:
    """Return the kind of ARNs and URLs of SQS queues."""
    return text(
        'an ARN such as "arn:aws:sqs:eu-west-1:123456789012:orders", or the URL of an SQS queue', queue_names.parse
    )


def time_zone() -> Kind:
    """Return the kind of names of time zones in this machine's IANA database."""
    return text('an IANA name such as "Europe/Berlin" or "UTC"', _is_time_zone)


def _is_time_zone(value: str) -> bool:
    try:
        zoneinfo.ZoneInfo(value)
    except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        return False
    return True


def host() -> Kind:
    """Return the kind of IP addresses and host names."""
    return text('an IP address or a host name, for example "127.0.0.1"', _is_host)


def _is_host(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        looks_like_address = not value.strip("0123456789.")
        return not looks_like_address and _HOST_NAME.fullmatch(value) is not None
    return True


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach a server that listens on `address`."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def handler() -> Kind:
    """Return the kind of handlers in Lambda's form.

    `thawd.config.cross_checks` also checks what the function's runtime requires of a handler.
    """
    allowed = 'a text "module.function" of at most 128 characters (dots or slashes within module)'
    return text(f'{allowed}, for example "classify.handler"', _HANDLER.fullmatch)


def is_python_handler(value: str) -> bool:
    """Return whether `value` names a function in a Python module."""
    module, dot, function = value.rpartition(".")
    # An import statement cannot name a module with a hyphen, but Lambda and importlib load it.
    parts = re.split(r"[./]", module.replace("-", "_"))
    return bool(dot) and len(value) <= 128 and function.isidentifier() and all(part.isidentifier() for part in parts)


def interpreter() -> Kind:
    """Return the kind of Python interpreters: a version number, a command or a path."""
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST_PYTHON, NEWEST_PYTHON))
    allowed = (
        f'a version from "{oldest}" to "{newest}" in quotes, a command, or the path of an interpreter or of a virtual '
        "environment's folder"
    )
    return text(allowed, _is_interpreter)


def _is_interpreter(value: str) -> bool:
    if not _VERSION.fullmatch(value):
        return value.strip() == value != ""
    version = tuple(map(int, value.split(".")))
    return len(version) in (2, 3) and OLDEST_PYTHON <= version[:2] <= NEWEST_PYTHON
