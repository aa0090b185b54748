"""Runs the priming event before the freeze, so that what a first invocation loads and compiles is in the snapshot.

The handler runs on the event twice. If the two answers are equal, a thawed copy must give the same answer in the
self-test of the image. If they differ, for example by a counter or a time, the copy only has to answer without an
error.
"""

import json
import os
import time
from typing import Any, Dict, NamedTuple, Optional

from thawd.runtime import faults, loop, process
from thawd.runtime.handler import Handler
from thawd.wire import frames


class PrimingResult(NamedTuple):
    """The result of priming.

    Attributes:
        answer: answer of the last run, JSON text; empty when a run failed.
        differ: whether the answers of the runs differ.
        refused: why the process must not be frozen; None when all runs succeeded.
    """

    answer: bytes = b""
    differ: bool = False
    refused: Optional[str] = None


def prime(handler: Handler, head: Dict[str, Any], event: bytes) -> PrimingResult:
    """Run the handler on `event`, like an invocation, once for each request id in `head`.

    Args:
        handler: the function's handler.
        head: head of the FREEZE frame: ``ids``, and the fields of an INVOKE frame other than ``id``.
        event: JSON text.
    """
    owner = os.getpid()
    answers = []
    streams = loop.streams_of(handler, None)
    for request_id in head["ids"]:
        started_s = time.monotonic()
        faults.write_log("PRIME_START RequestId: %s\n" % request_id)
        try:
            request = frames.Frame(frames.INVOKE, {**head, "id": request_id}, event)
            ((body, failed),) = loop.run([request], handler, streams, now_s=started_s)
        except SystemExit as error:
            body, failed = json.dumps({"errorType": "SystemExit", "errorMessage": str(error.code)}).encode(), True
        process.flush_output()
        if os.getpid() != owner:
            os._exit(0)  # this is a child that the handler forked and that also returned from the handler
        duration_ms = (time.monotonic() - started_s) * 1000
        faults.write_log("PRIME_END RequestId: %s\tDuration: %.2f ms\n" % (request_id, duration_ms))
        if failed:
            return PrimingResult(refused=_failure(body))
        answers.append(body)
    return PrimingResult(answers[-1], differ=len(set(answers)) > 1)


def _failure(document: bytes) -> str:
    error = json.loads(document)
    return "%s: %s: %s; the log has the details. Fix the handler or the event that `prime` names, or remove `prime`" % (
        frames.PRIMING_FAILED,
        error["errorType"],
        error["errorMessage"],
    )
