"""What the operations of the Logs API share: names of groups, periods of time, and the tokens for the next page.

Source: CloudWatch Logs API reference.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import InvalidParameterException
from thawd.cloudwatch.logs.events import Place
from thawd.resources import ACCOUNT_ID, REGION
from thawd.stores.log_events import FIRST, Key
from thawd.telemetry.logs.events import LogPosition

MAX_EVENTS = 10_000
"""Largest number of events in an answer. Source: GetLogEvents, FilterLogEvents."""
MAX_PAGE = 50
"""Largest number of groups or streams in an answer. Source: DescribeLogGroups, DescribeLogStreams."""
# A token of two numbers of 20 digits is for files only; longer ones have a place in the state file, too.
_TOKEN = re.compile(r"([fb])/(\d{20})(\d{20})(?:/(-?\d{1,19})/(\d{1,19}))?")
_GROUP = re.compile(r"[.\-_/#A-Za-z0-9]{1,512}")
_GROUP_ARN = re.compile(r"arn:aws:logs:[a-z0-9-]+:\d{12}:log-group:([.\-_/#A-Za-z0-9]{1,512})(?::\*)?")

Request = Mapping[str, Any]
"""The checked input of an operation, by member."""


def group_of(request: Request) -> str:
    """The name of the group that a request names, by its name or by its ARN.

    Raises:
        InvalidParameterException: the request names no group, or two, or the name is malformed (400).
    """
    name, identifier = request.get("logGroupName"), request.get("logGroupIdentifier")
    if name is not None and identifier is not None:
        raise InvalidParameterException("Exactly one of logGroupName and logGroupIdentifier must be specified.")
    if identifier is not None:
        return identified(identifier)
    if name is None:
        raise unmet(None, "logGroupName", "Member must not be null")
    return str(name)


def identified(identifier: str, field: str = "logGroupIdentifier") -> str:
    """The name of the group with this name or ARN.

    Raises:
        InvalidParameterException: it is neither (400).
    """
    match = _GROUP_ARN.fullmatch(identifier)
    name = match[1] if match else identifier
    if not _GROUP.fullmatch(name):
        raise unmet(name, field, r"Member must satisfy regular expression pattern: [\.\-_/#A-Za-z0-9]+")
    return name


def arn_of(group: str) -> str:
    """The ARN of a group, without ``:*``."""
    return f"arn:aws:logs:{REGION}:{ACCOUNT_ID}:log-group:{group}"


def check_period(request: Request) -> tuple[int, int | None]:
    """Start and end of the requested period, in milliseconds since the epoch; an end of None means no end.

    Raises:
        InvalidParameterException: the end is before the start (400).
    """
    start_ms, end_ms = request.get("startTime"), request.get("endTime")
    if start_ms is not None and end_ms is not None and start_ms > end_ms:
        raise InvalidParameterException("End time should not be less than start time.")
    return start_ms or 0, end_ms


def unmet(value: object, field: str, constraint: str) -> InvalidParameterException:
    """The error for a field whose value does not meet a constraint of AWS's service model."""
    shown = "null" if value is None else f"'{value}'"
    return InvalidParameterException(
        f"1 validation error detected: Value {shown} at '{field}' failed to satisfy constraint: {constraint}"
    )


def token_of(*parts: str) -> str:
    """Make a token from `parts`; `parts_of` reads them back."""
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).decode()


def parts_of(token: str | None, count: int) -> list[str] | None:
    """The parts of a token that `token_of` made; None if `token` is None.

    Args:
        token: as the client sent it.
        count: how many parts the token must have.

    Raises:
        InvalidParameterException: the token was not made by `token_of` (400).
    """
    if token is None:
        return None
    try:
        parts = msgspec.json.decode(base64.b64decode(token, altchars=b"-_", validate=True), type=list[str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        parts = []
    if len(parts) != count:
        raise _invalid_token()
    return parts


def whole_of(text: str) -> int:
    """The number in one part of a token.

    Raises:
        InvalidParameterException: the part is not a number (400).
    """
    if not re.fullmatch(r"\d{1,18}", text):
        raise _invalid_token()
    return int(text)


def position_token(direction: str, place: Place) -> str:
    """A token for the page that begins at `place` and continues in `direction`: ``f`` forward, ``b`` backward."""
    token = f"{direction}/{place.file.file:020d}{place.file.offset:020d}"
    return token if place.stored == FIRST else f"{token}/{place.stored.time_ms}/{place.stored.id}"


def position_of(token: str | None) -> tuple[str, Place] | None:
    """Direction and place in a token that `position_token` made; None if `token` is None.

    Raises:
        InvalidParameterException: the token was not made by `position_token` (400).
    """
    if token is None:
        return None
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise _invalid_token()
    stored = FIRST if match[4] is None else Key(int(match[4]), int(match[5]))
    if stored.time_ms > 1 << 62 or stored.id > 1 << 62:
        raise _invalid_token()
    return match[1], Place(LogPosition(int(match[2]), int(match[3])), stored)


def _invalid_token() -> InvalidParameterException:
    return InvalidParameterException("The specified nextToken is invalid.")
