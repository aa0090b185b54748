"""The invoke phase: receives a frame, runs the handler, sends a frame, until the platform closes the channel."""

import os
import time
from typing import Any, NoReturn, Optional

from thawd.runtime import faults, invoking, process
from thawd.runtime.channel import Channel
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler, load
from thawd.wire import frames

INIT_FAILED = 1


def give_up(channel: Channel, report: faults.Report, *, status: int) -> NoReturn:
    """Report to the platform and in the log why this process cannot serve, then end the process."""
    process.flush_output()
    faults.write_log(report.text)
    channel.send(frames.INIT_ERROR, {"type": report.error_type, "message": report.message}, report.document)
    # Not sys.exit: a non-daemon thread started by the module would keep the process alive.
    os._exit(status)


def init(channel: Channel) -> Handler:
    """Load the handler; if that fails, report it to the platform and end."""
    try:
        return load(os.environ["_HANDLER"], os.environ["LAMBDA_TASK_ROOT"])
    except SystemExit as error:
        process.flush_output()
        fault = Fault("Runtime.ExitError", "Runtime exited with error: exit status %s" % _status(error), error)
        report = faults.report(fault)
    except BaseException as error:  # anything the user's module raised
        report = faults.report(error)
    give_up(channel, report, status=INIT_FAILED)


def _status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def serve(channel: Channel, handler: Handler, *, until: Optional[int] = None) -> None:
    """Answer invocations one at a time. When the platform closes the channel, the process ends.

    Args:
        channel: channel to the platform.
        handler: the function's handler.
        until: the kind of frame on which to return; None: never return.
    """
    peak = process.OwnPeakMemory()
    owner = os.getpid()
    streams = streams_of(handler, channel)
    while True:
        frame = channel.receive()
        if frame is not None and frame.kind == until:
            return
        if frame is None or frame.kind != frames.INVOKE:
            os._exit(0)
        started_s = time.monotonic()
        if streams is None:
            body, failed = invoking.invoke(handler, frame.head, frame.body, now_s=started_s)
        else:
            body, failed = streams.invoke(frame.head, frame.body, now_s=started_s)
        process.flush_output()
        if os.getpid() != owner:
            os._exit(0)  # this is a child that the handler forked and that also returned from the handler
        duration_ms = (time.monotonic() - started_s) * 1000
        head = {"duration_ms": duration_ms, "peak_kib": peak.kib(), "failed": failed}
        if streams is not None:
            head.update(streams.result_head)
        try:
            channel.send(frames.RESULT, head, body)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


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
