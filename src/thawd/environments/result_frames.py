"""Checks the RESULT frames that a process sends, because user code can write to its end of the channel."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from thawd.wire.response_stream import CONTENT_TYPE


class _ResultHead(msgspec.Struct):
    duration_ms: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    peak_kib: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    failed: bool
    item: int = 0
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
