"""The priming event: run before the freeze, so that what a first invocation loads and compiles is in the snapshot.

It is run twice. Two equal answers mean that a thawed copy's must be equal too; where they differ, as with a counter or
a time in them, only its success can be compared.
"""

import json
import os
import time
from typing import Any, Dict, NamedTuple, Optional

from thawd.runtime import faults, invoking, loop, process
from thawd.runtime.handler import Handler
from thawd.wire import frames


class Primed(NamedTuple):
    """How it went.

    Attributes:
        answer: of the last run, JSON text.
        differ: whether the answers differ from each other.
        refused: why the process must not be frozen; None when all went well.
    """

    answer: bytes = b""
    differ: bool = False
    refused: Optional[str] = None


def prime(handler: Handler, head: Dict[str, Any], event: bytes) -> Primed:
    """Run the handler on `event`, once for each of the request ids in `head`, as an invocation would.

    Args:
        handler: the function's.
        head: of the FREEZE frame: ``ids``, and what an INVOKE has besides its id.
        event: JSON text.
    """
    owner = os.getpid()
    answers = []
    streams = loop.streams_of(handler, None)
    for request_id in head["ids"]:
        started_s = time.monotonic()
        faults.write_log("PRIME_START RequestId: %s\n" % request_id)
        try:
            invoke_head = {**head, "id": request_id}
            if streams is None:
                body, failed = invoking.invoke(handler, invoke_head, event, now_s=started_s)
            else:
                body, failed = streams.invoke(invoke_head, event, now_s=started_s)
        except SystemExit as error:
            body, failed = json.dumps({"errorType": "SystemExit", "errorMessage": str(error.code)}).encode(), True
        process.flush_output()
        if os.getpid() != owner:
            os._exit(0)  # a child that the handler forked has come back from it too
        duration_ms = (time.monotonic() - started_s) * 1000
        faults.write_log("PRIME_END RequestId: %s\tDuration: %.2f ms\n" % (request_id, duration_ms))
        if failed:
            return Primed(refused=_failure(body))
        answers.append(body)
    return Primed(answers[-1], differ=len(set(answers)) > 1)


def _failure(document: bytes) -> str:
    told = json.loads(document)
    return (
        "%s: %s: %s; the log has the details. Mend the handler, or the event that `prime` "
        "names, or take `prime` out" % (frames.PRIMING_FAILED, told["errorType"], told["errorMessage"])
    )
