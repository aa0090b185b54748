"""The heads of INVOKE frames, which tell a process about an invocation."""

from __future__ import annotations

from typing import Any

from thawd.invocation import Invocation, new_trace_header
from thawd.wire.response_stream import ResponseStream


def invoke_head(invocation: Invocation, *, arn: str, timeout_s: float, stream: ResponseStream | None) -> dict[str, Any]:
    """Return the head of the INVOKE frame for `invocation`.

    Args:
        invocation: the invocation.
        arn: the function's ARN, without a qualifier.
        timeout_s: the function's time limit, seconds.
        stream: takes the answer in parts; None: the process sends the answer whole.
    """
    head: dict[str, Any] = {
        "id": invocation.request_id,
        "arn": arn if invocation.qualifier is None else f"{arn}:{invocation.qualifier}",
        "left_ms": timeout_s * 1000,
        "trace": invocation.trace_id or new_trace_header(),
    }
    if invocation.tenant_id is not None:
        head["tenant"] = invocation.tenant_id
    if invocation.client_context:
        head["client"] = invocation.client_context
    if stream is not None:
        head["stream"] = stream.limit_bytes
    return head
