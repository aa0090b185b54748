"""The answers of invocations: those that a process sends as RESULT frames, and those that the platform makes itself.

Each is the head of a RESULT frame, and the body: the answer or an error document.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from thawd.environments.init_phase import error_document
from thawd.wire.frames import LONGEST_LOGGED
from thawd.wire.response_stream import CONTENT_TYPE

TIMED_OUT = "Sandbox.Timedout"


_Text = Annotated[str, msgspec.Meta(max_length=LONGEST_LOGGED)]


class ResultHead(msgspec.Struct):
    """The head of a RESULT frame.

    Attributes:
        duration_ms: time in the handler, milliseconds.
        peak_kib: peak memory of the process, KiB.
        failed: whether the body is an error document.
        item: the item's number in its batch.
        number: the invocation's number, if several run at the same time.
        type: content type of the body, which may then be any bytes; None: the body is text in UTF-8.
        logged: type and message of the last exception that the invocation has logged as an error; None: there is none.
        error_type: AWS's name for what ended the environment during the invocation; empty in frames of a process.
        message: describes for people what ended the environment; empty in frames of a process.
    """

    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    peak_kib: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    failed: bool
    item: int = 0
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    type: Annotated[str, msgspec.Meta(pattern=CONTENT_TYPE)] | None = None
    logged: tuple[_Text, _Text] | None = None
    error_type: ClassVar[str] = ""
    message: ClassVar[str] = ""

    @property
    def status(self) -> str:
        """``success``, ``error`` or ``timeout``."""
        return "timeout" if self.error_type == TIMED_OUT else "error" if self.failed else "success"


class _FailureHead(ResultHead):
    error_type: str = ""  # type: ignore[misc]  # the platform sets these two, and a process cannot
    message: str = ""  # type: ignore[misc]


Answer = tuple[ResultHead, bytes]


class Ended(Exception):
    """The process ended while an invocation ran in it; `status` is the wait status, None when unknown."""

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status


decode_head = msgspec.json.Decoder(ResultHead).decode
"""Decodes the head of a RESULT frame. User code can write to the process's end of the channel, so an invalid head is an
error (`msgspec.MsgspecError`)."""


def check_body(head: ResultHead, body: bytes) -> None:
    """Check the body of a RESULT frame.

    Raises:
        ValueError: the head names no content type, and the body is not UTF-8 text.
    """
    if head.type is None and not body.isascii():
        body.decode()


def failure(request_id: str, error_type: str, message: str, *, duration_s: float) -> Answer:
    """Return the answer for an invocation during which the process has ended; the words are Lambda's.

    Args:
        request_id: the invocation's request id.
        error_type: AWS's name for what ended it.
        message: describes that for people.
        duration_s: how long the invocation ran, seconds.
    """
    head = _FailureHead(duration_s * 1000, 0, failed=True, error_type=error_type, message=message)
    return head, error_document(error_type, f"RequestId: {request_id} Error: {message}")


def timed_out(request_id: str, limit_s: float, *, peak_kib: int) -> Answer:
    """Return the answer for an invocation that took longer than `limit_s` seconds; the words are Lambda's.

    Args:
        request_id: the invocation's request id.
        limit_s: the time limit.
        peak_kib: peak memory of the process at the time limit, KiB.
    """
    head, body = failure(request_id, TIMED_OUT, f"Task timed out after {limit_s:.2f} seconds", duration_s=limit_s)
    head.peak_kib = peak_kib
    return head, body
