"""The invoke phase: runs the handler for each invocation that the platform sends, and sends the answer back.

It ends when the platform closes the channel.
"""

import os
import sys
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from thawd.runtime import faults, invoking, process
from thawd.runtime.channel import Channel
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler, load
from thawd.runtime.handler_kinds import is_asynchronous
from thawd.wire import frames

INIT_FAILED = 1
_RESULT_HEAD = b'{"duration_ms":%r,"peak_kib":%d,"failed":%b}'
_NO_REASON = "Runtime exited without providing a reason"


def give_up(channel: Channel, report: faults.Report, *, status: int) -> NoReturn:
    """Report to the platform and in the log why this process cannot serve, then end the process."""
    process.flush_output()
    faults.write_log(report.text)
    channel.send(frames.INIT_ERROR, {"type": report.error_type, "message": report.message}, report.document)
    # Not sys.exit: a non-daemon thread started by the module would keep the process alive.
    os._exit(status)


def init(channel: Channel, *, debugs: bool = False) -> Handler:
    """Load the handler; if that fails, report the failure to the platform and end this process.

    Args:
        channel: channel to the platform.
        debugs: whether a debugger may stop this process, which also is to be possible in the handler's module.
    """
    try:
        if debugs:
            from thawd.runtime import debugging

            debugging.start()
        elif sys.breakpointhook is sys.__breakpointhook__:
            sys.breakpointhook = faults.refuse_breakpoint
        return _prepared(load(os.environ["_HANDLER"], os.environ["LAMBDA_TASK_ROOT"]))  # type: ignore[no-any-return]
    except SystemExit as error:
        process.flush_output()
        status = _status(error)
        message = "Runtime exited with error: exit status %s" % status if status else _NO_REASON
        fault = Fault(faults.EXITED, message, error)
        report = faults.report(fault)
    except BaseException as error:  # anything the user's module raised
        report = faults.report(error)
    give_up(channel, report, status=INIT_FAILED)


def _prepared(handler: Handler) -> Any:
    """The handler, or an object that runs it if the function has the option ``batch`` or ``concurrency``.

    What only some functions need is imported only for them, to keep the starts of others fast, but here, so that a
    snapshot contains it.
    """
    if os.environ.get("THAWD_BATCH"):
        from thawd.runtime.batches import BatchHandler

        return BatchHandler(handler)
    if os.environ.get("THAWD_CONCURRENCY"):
        from thawd.runtime.concurrent import ConcurrentHandler

        return ConcurrentHandler(handler)
    if is_asynchronous(handler):
        from thawd.runtime import coroutines  # `invoking` uses it, too

        if getattr(handler, "streams", None) is True:
            handler.finish = coroutines.finish  # type: ignore[attr-defined]
    return handler


def _status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def serve(
    channel: Channel,
    handler: Handler,
    *,
    until: Optional[int] = None,
    after_first: Optional[Callable[[], object]] = None,
) -> None:
    """Answer invocations one at a time, or one batch at a time, or several at the same time if the handler can do that.

    When the platform closes the channel, the process ends.

    Args:
        channel: channel to the platform.
        handler: the function's handler.
        until: the kind of frame on which to return; None: never return.
        after_first: called once, after the first answer, unless several invocations run at the same time.
    """
    concurrent = sys.modules.get("thawd.runtime.concurrent")  # `init` imports it if the function has that option
    if concurrent is not None and isinstance(handler, concurrent.ConcurrentHandler):
        concurrent.serve(channel, handler, until=until)
        return
    peak = process.OwnPeakMemory()
    owner = os.getpid()
    streams = streams_of(handler, channel)
    while True:
        frame = channel.receive()
        if frame is not None and frame.kind == until:
            return
        if frame is None or frame.kind != frames.INVOKE:
            end(handler)
        started_s = time.monotonic()
        answers = run([frame, *_rest_of_batch(channel, frame)], handler, streams, now_s=started_s)
        process.flush_output()
        if os.getpid() != owner:
            os._exit(0)  # this is a child that the handler forked and that also returned from the handler
        duration_ms = (time.monotonic() - started_s) * 1000
        try:
            if streams is None and len(answers) == 1 and not faults.logged:
                [(body, failed)] = answers
                # Formatting this text takes a fifth of the time of a JSON encoder.
                text = _RESULT_HEAD % (duration_ms, peak.kib(), b"true" if failed else b"false")
                channel.send(frames.RESULT, text, body)
            else:
                head: Dict[str, Any] = {"duration_ms": duration_ms, "peak_kib": peak.kib()}
                if streams is not None:
                    head.update(streams.result_head)
                _send(channel, answers, head, request_id=frame.head["id"])
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        channel.wait_by_poll()
        if after_first is not None:
            after_first()
            after_first = None


def _send(channel: Channel, answers: List[Tuple[bytes, bool]], head: Dict[str, Any], *, request_id: str) -> None:
    """Send the answers of an invocation or of a batch.

    Args:
        channel: channel to the platform.
        answers: for each item the answer, and whether it is an error document.
        head: what the heads of all RESULT frames contain.
        request_id: the invocation's request id; that of the first item of a batch.
    """
    logged = faults.logged.get(request_id)
    faults.logged.clear()
    if logged is not None and len(answers) == 1:
        head["logged"] = logged
    for item, (body, failed) in enumerate(answers):
        head["failed"] = failed
        if item:
            head["item"] = item
        channel.send(frames.RESULT, head, body)


def shutdown_of(handler: Any) -> Optional[Callable[[], None]]:
    """What runs an application's shutdown at the end of this process; None: there is nothing to run."""
    closing: Optional[Callable[[], None]] = getattr(handler, "closing", None)
    return closing if getattr(handler, "answers_whole", None) is True else None


def end(handler: Any) -> NoReturn:
    """End this process, because the platform has closed the channel; first run the application's shutdown."""
    shut_down = shutdown_of(handler)
    if shut_down is not None:
        try:
            shut_down()
        except BaseException as error:  # anything that user code raised
            invoking.write_failure(faults.report(error), error)
        process.flush_output()
    os._exit(0)


def run(requests: List[frames.Frame], handler: Any, streams: Any, *, now_s: float) -> List[Tuple[bytes, bool]]:
    """Run the handler; returns for each request the answer, and whether the answer is an error document.

    Args:
        requests: one INVOKE frame; if the handler takes lists of events, one INVOKE frame for each item of the batch.
        handler: the function's handler.
        streams: what `streams_of` returns for the handler.
        now_s: when the first request arrived, ``time.monotonic()`` seconds.

    Raises:
        SystemExit: the handler called ``sys.exit``.
    """
    concurrent = sys.modules.get("thawd.runtime.concurrent")
    if concurrent is not None and isinstance(handler, concurrent.ConcurrentHandler):
        return [handler.run_alone(requests[0], now_s=now_s)]
    batches = sys.modules.get("thawd.runtime.batches")  # `init` imports it if the handler takes lists
    if batches is not None and isinstance(handler, batches.BatchHandler):
        answers: List[Tuple[bytes, bool]] = handler.invoke(requests, now_s=now_s)
        return answers
    request = requests[0]
    if streams is None:
        return [invoking.invoke(handler, request.head, request.body, now_s=now_s)]
    return [streams.invoke(request.head, request.body, now_s=now_s)]


def _rest_of_batch(channel: Channel, first: frames.Frame) -> List[frames.Frame]:
    """Receive the other items of the batch that begins with `first`."""
    rest: List[frames.Frame] = []
    while len(rest) + 1 < first.head.get("of", 1):
        frame = channel.receive()
        if frame is None or frame.kind != frames.INVOKE:
            os._exit(0)
        rest.append(frame)
    return rest


def streams_of(handler: Handler, channel: Optional[Channel]) -> Any:
    """The `Streams` for a handler that `thawd.streaming` has marked; None for an ordinary handler.

    Args:
        handler: the function's handler.
        channel: channel to the platform; None: answers are returned whole.
    """
    if getattr(handler, "streams", None) is not True:
        return None
    from thawd.runtime.streams import Streams

    return Streams(handler, channel)
