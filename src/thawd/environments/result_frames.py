"""The answers of invocations: those that a process sends as RESULT frames, and those that the platform makes itself.

Each is the head of a RESULT frame, and the body: the answer or an error document.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from thawd.environments.init_phase import error_document
from thawd.wire.response_stream import CONTENT_TYPE

TIMED_OUT = "Sandbox.Timedout"

Answer = tuple[dict[str, Any], bytes]


class _ResultHead(msgspec.Struct):
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    peak_kib: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    failed: bool
    item: int = 0
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    type: Annotated[str, msgspec.Meta(pattern=CONTENT_TYPE)] | None = None


def checked_head(head: Any, body: bytes) -> dict[str, Any]:
    """Check the head of a RESULT frame, because user code can write to the process's end of the channel.

    Raises:
        msgspec.ValidationError: a field of the head has the wrong type or is out of range.
        ValueError: the head names no content type, and the body is not UTF-8 text.
    """
    checked = msgspec.convert(head, _ResultHead)
    if checked.type is None:
        body.decode()
    return msgspec.structs.asdict(checked)


def failure(request_id: str, error_type: str, message: str, *, duration_s: float) -> Answer:
    """Return the answer for an invocation during which the process has ended; the words are Lambda's.

    Args:
        request_id: the invocation's request id.
        error_type: AWS's name for what ended it.
        message: describes that for people.
        duration_s: how long the invocation ran, seconds.
    """
    head: dict[str, Any] = {"duration_ms": duration_s * 1000, "peak_kib": 0, "failed": True}
    head["error_type"], head["message"] = error_type, message
    return head, error_document(error_type, f"RequestId: {request_id} Error: {message}")


def timed_out(request_id: str, limit_s: float) -> Answer:
    """Return the answer for an invocation that took longer than `limit_s` seconds; the words are Lambda's."""
    return failure(request_id, TIMED_OUT, f"Task timed out after {limit_s:.2f} seconds", duration_s=limit_s)
