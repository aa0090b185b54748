"""The result of an invocation: made of the answer of its process, and reported to the log and to who waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from thawd.environments.log_tails import LogTails, OwnTail
from thawd.environments.platform_log import InvocationOutcome, StartTimes
from thawd.environments.result_frames import Answer
from thawd.invocation import Invocation, Result, StartKind

if TYPE_CHECKING:
    from thawd.environments.environment import Environment

_encode = msgspec.json.Encoder().encode


def result_of(
    environment: Environment,
    invocation: Invocation,
    answer: Answer,
    tails: LogTails | OwnTail | None,
    *,
    init_ms: float | None,
    size: int,
) -> Result:
    """Return the result of `invocation`, and report it to the log and to the invocation's `on_result`.

    Args:
        environment: where it ran.
        invocation: what ran.
        answer: head and body of what its process, or the platform in its place, answered.
        tails: collects the end of the log; None: nobody wants it.
        init_ms: how long the environment took to start, milliseconds, if the invocation waited for that; else None.
        size: how many invocations ran together.
    """
    head, body = answer
    environment.duration_ms = head.duration_ms
    restored = environment.restored and not environment.waited_for_init
    outcome = InvocationOutcome(
        request_id=invocation.request_id,
        duration_ms=head.duration_ms,
        memory_mib=-(-head.peak_kib // 1024),
        status=head.status,
        error_type=head.error_type,
        message=head.message,
        start=None if init_ms is None else StartTimes(init_ms, restored, environment.billed_restore_ms),
        batch_size=None if environment.version.function.batch is None else size,
    )
    content_type = head.type
    if content_type is not None and invocation.asynchronous:
        # Records for destinations are JSON, so the text becomes a JSON string.
        body, content_type = _encode(body.decode("utf-8", "replace")), None
    log = environment.log
    result = Result(
        payload=body,
        function_error="Unhandled" if head.failed else None,
        executed_version=environment.version.number,
        start_kind=StartKind.WARM if init_ms is None else environment.kind,
        duration_ms=outcome.duration_ms,
        init_ms=init_ms,
        prepare_ms=environment.prepare_ms,
        log_tail=b"" if tails is None else tails.finish(invocation, lambda: log.done(outcome)),
        content_type=content_type,
        batch_size=size,
        hooks_ms=environment.hooks_ms,
        log_stream=environment.stream.name,
        logged=head.logged,
        memory_mb=environment.version.function.memory_mb,
        peak_mib=outcome.memory_mib,
        is_restored=restored,
    )
    if tails is None:
        try:
            if invocation.on_result is not None:
                invocation.on_result(result)
        finally:
            log.done(outcome)
    return result
