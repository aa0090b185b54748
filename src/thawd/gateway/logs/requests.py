"""Requests of the Logs API: their fields, the checks that need no log, and the tokens for the next page.

Source: CloudWatch Logs API reference.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import ClassVar

import msgspec

from thawd.errors import ThawdError
from thawd.telemetry.logs.events import LogPosition

MAX_EVENTS = 10_000
"""Largest number of events in an answer. Source: GetLogEvents, FilterLogEvents."""
MAX_PAGE = 50
"""Largest number of groups or streams in an answer. Source: DescribeLogGroups, DescribeLogStreams."""
_TOKEN = re.compile(r"([fb])/(\d{20})(\d{20})")
_GROUP = re.compile(r"[.\-_/#A-Za-z0-9]{1,512}")
_GROUP_ARN = re.compile(r"arn:aws:logs:[a-z0-9-]+:\d{12}:log-group:([.\-_/#A-Za-z0-9]{1,512})(?::\*)?")


class InvalidParameterException(ThawdError):
    """The value of a parameter, or the combination of parameters, is not allowed (HTTP 400)."""

    type = "InvalidParameterException"
    status = 400
    retryable = False


class LogsRequest(msgspec.Struct, rename="camel"):
    """The fields that all requests share; each operation checks the fields that it uses."""

    limits: ClassVar[tuple[int, int]] = (1, MAX_PAGE)

    limit: int | None = None
    next_token: str | None = None

    def page(self, default: int) -> int:
        """How many entries the answer may have: the request's limit, or `default` if the request names none.

        Raises:
            InvalidParameterException: the requested limit is out of range (400).
        """
        if self.limit is None:
            return default
        least, most = self.limits
        if not least <= self.limit <= most:
            word, bound = ("greater", least) if self.limit < least else ("less", most)
            raise unmet(self.limit, "limit", f"Member must have value {word} than or equal to {bound}")
        return self.limit


class DescribeLogGroups(LogsRequest, rename="camel"):
    log_group_name_prefix: str | None = None
    log_group_name_pattern: str | None = None


class _InGroup(LogsRequest, rename="camel"):
    log_group_name: str | None = None
    log_group_identifier: str | None = None

    def group(self) -> str:
        """The name of the log group.

        Raises:
            InvalidParameterException: the request names no group, or two, or the name is malformed (400).
        """
        if self.log_group_name is not None and self.log_group_identifier is not None:
            raise InvalidParameterException("Exactly one of logGroupName and logGroupIdentifier must be specified.")
        if self.log_group_identifier is not None:
            match = _GROUP_ARN.fullmatch(self.log_group_identifier)
            name = match[1] if match else self.log_group_identifier
            field = "logGroupIdentifier"
        elif self.log_group_name is not None:
            name, field = self.log_group_name, "logGroupName"
        else:
            raise unmet(None, "logGroupName", "Member must not be null")
        if not _GROUP.fullmatch(name):
            raise unmet(name, field, r"Member must satisfy regular expression pattern: [\.\-_/#A-Za-z0-9]+")
        return name


class DescribeLogStreams(_InGroup, rename="camel"):
    log_stream_name_prefix: str | None = None
    order_by: str | None = None
    descending: bool = False


class GetLogEvents(_InGroup, rename="camel"):
    limits: ClassVar[tuple[int, int]] = (1, MAX_EVENTS)

    log_stream_name: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    start_from_head: bool = False


class FilterLogEvents(_InGroup, rename="camel"):
    limits: ClassVar[tuple[int, int]] = (1, MAX_EVENTS)

    log_stream_names: list[str] | None = None
    log_stream_name_prefix: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    filter_pattern: str | None = None


def check_period(start_ms: int | None, end_ms: int | None) -> tuple[int, int | None]:
    """Start and end of the requested period, in milliseconds since the epoch; an end of None means no end.

    Raises:
        InvalidParameterException: a time is negative, or the end is before the start (400).
    """
    for name, value in (("startTime", start_ms), ("endTime", end_ms)):
        if value is not None and value < 0:
            raise unmet(value, name, "Member must have value greater than or equal to 0")
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


def position_token(direction: str, place: LogPosition) -> str:
    """A token for the page that begins at `place` and continues in `direction`: ``f`` forward, ``b`` backward."""
    return f"{direction}/{place.file:020d}{place.offset:020d}"


def position_of(token: str | None) -> tuple[str, LogPosition] | None:
    """Direction and place in a token that `position_token` made; None if `token` is None.

    Raises:
        InvalidParameterException: the token was not made by `position_token` (400).
    """
    if token is None:
        return None
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise _invalid_token()
    return match[1], LogPosition(int(match[2]), int(match[3]))


def _invalid_token() -> InvalidParameterException:
    return InvalidParameterException("The specified nextToken is invalid.")
