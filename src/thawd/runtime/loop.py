"""The invoke phase: one frame in, the handler, one frame out, until the platform closes the channel."""

import json
import os
import sys
import time
from typing import Any, Callable, NoReturn, Optional, Tuple

from thawd.runtime import aws_guard, faults, logs, process, sdk, services
from thawd.runtime.channel import Channel
from thawd.runtime.context import LambdaContext
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler, load
from thawd.snapshot import hooks
from thawd.wire import frames

# Source: Lambda quotas, "Invocation payload (request and response)".
MAX_RESPONSE_BYTES = 6_291_556
INIT_FAILED = 1


def main(mode: str, control: int, service: int, lifeline: int) -> NoReturn:
    """Run the init phase, then serve as an environment, fork environments as a template or be frozen; never returns."""
    started_s = time.monotonic()
    if mode == "api":
        from thawd.runtime import api_client

        api_client.run()
    if mode == "snapshot":
        process.settle_descriptors([control, service, lifeline])
        control, service, lifeline = frames.DESCRIPTORS
    process.die_with_platform(lifeline)
    process.keep_private([control, service, lifeline])
    process.limit_descriptors()
    process.set_up_output()
    logs.install()
    hooks.install()
    sdk.install()
    aws_guard.install()
    channel = Channel(control)
    services.connect(service)
    if mode == "lint":
        from thawd.runtime import linting

        linting.run(channel, own_fds=[control, service, lifeline])
    if mode == "snapshot":
        from thawd.runtime import freezing

        channel, handler, head = freezing.run(channel, started_s=started_s)
        # From here on this is a thawed environment, or one forked from a process that was thawed or frozen.
    else:
        handler = init(channel)
        head = {"init_ms": (time.monotonic() - started_s) * 1000}
    if mode == "template":
        from thawd.runtime import template

        channel, _, head["init_ms"] = template.run(channel, init_ms=head["init_ms"], own_fds=[service, lifeline])
        # From here on this is a forked environment.
    channel.send(frames.READY, {"pid": os.getpid(), **head})
    serve(channel, handler)
    raise AssertionError("serve returns only where it is told when")


def give_up(channel: Channel, told: faults.Report, *, status: int) -> NoReturn:
    """Tell the platform and the log why this process cannot serve, and end it."""
    process.flush_output()
    faults.write_log(told.text)
    channel.send(frames.INIT_ERROR, {"type": told.error_type, "message": told.message}, told.document)
    # Not sys.exit: a non-daemon thread started by the module would keep the process alive.
    os._exit(status)


def init(channel: Channel) -> Handler:
    """Load the handler, or tell the platform why not and end."""
    try:
        return load(os.environ["_HANDLER"], os.environ["LAMBDA_TASK_ROOT"])
    except SystemExit as error:
        process.flush_output()
        fault = Fault("Runtime.ExitError", "Runtime exited with error: exit status %s" % _status(error), error)
        told = faults.report(fault)
    except BaseException as error:  # whatever the user's module raised
        told = faults.report(error)
    give_up(channel, told, status=INIT_FAILED)


def _status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def serve(channel: Channel, handler: Handler, *, until: Optional[int] = None) -> None:
    """Answer invocations one at a time; ends the process when the platform closes the channel.

    Args:
        channel: to the platform.
        handler: the function's.
        until: the kind of frame on which to return; None: never.
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
            body, failed = invoke(handler, frame.head, frame.body, now_s=started_s)
        else:
            body, failed = streams.invoke(frame.head, frame.body, now_s=started_s)
        process.flush_output()
        if os.getpid() != owner:
            os._exit(0)  # a child that the handler forked has come back from it too
        duration_ms = (time.monotonic() - started_s) * 1000
        head = {"duration_ms": duration_ms, "peak_kib": peak.kib(), "failed": failed}
        if streams is not None:
            head.update(streams.told)
        try:
            channel.send(frames.RESULT, head, body)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def streams_of(handler: Handler, channel: Optional[Channel]) -> Any:
    """What runs a handler that `thawd.streaming` has marked; None for an ordinary one.

    Args:
        handler: the function's.
        channel: to the platform; None: answers are wanted whole.
    """
    if getattr(handler, "streams", None) is not True:
        return None
    from thawd.runtime.streams import Streams

    return Streams(handler, channel)


def invoke(
    handler: Handler, head: Any, event: bytes, *, now_s: float, marshal: Optional[Callable[[Any], bytes]] = None
) -> Tuple[bytes, bool]:
    """Run the handler on one event: the answer as JSON text, and whether it is an error document.

    Args:
        handler: the function's.
        head: of the INVOKE frame: ``id``, ``arn``, ``left_ms`` and perhaps ``trace`` and ``client``.
        event: JSON text.
        now_s: when the invocation began, ``time.monotonic()`` seconds.
        marshal: makes the answer's bytes of what the handler returned; None: as JSON text.

    Raises:
        SystemExit: the handler wants the process to end.
    """
    request_id = head["id"]
    logs.set_request_id(request_id)
    trace_id = head.get("trace")
    if trace_id:
        os.environ["_X_AMZN_TRACE_ID"] = trace_id
    else:
        os.environ.pop("_X_AMZN_TRACE_ID", None)
    try:
        context = LambdaContext(
            request_id,
            arn=head["arn"],
            deadline_s=now_s + head["left_ms"] / 1000,
            client_context=head.get("client"),
        )
        return (marshal or _marshal)(handler(_unmarshal(event), context)), False
    except SystemExit as error:
        process.flush_output()
        _log(Fault("Runtime.ExitError", "the handler called sys.exit(%r)" % error.code, error), request_id)
        raise
    except BaseException as error:  # the border to user code: nothing it raises may end the loop
        return _log(error, request_id), True


def _log(error: BaseException, request_id: str) -> bytes:
    told = faults.report(error, request_id)
    process.flush_output()
    faults.write_log(told.text)
    if hint := sdk.hint(error):
        faults.write_log("thawd: %s\n" % hint)
    return told.document


def _unmarshal(event: bytes) -> Any:
    try:
        return json.loads(event.decode())
    except ValueError as error:
        raise Fault("Runtime.UnmarshalError", "Unable to unmarshal input: %s" % error) from None


def _marshal(response: Any) -> bytes:
    try:
        body = _encode(response)
    except (TypeError, ValueError, RecursionError) as error:
        raise Fault("Runtime.MarshalError", "Unable to marshal response: %s" % error) from None
    if len(body) > MAX_RESPONSE_BYTES:
        raise Fault(
            "Function.ResponseSizeTooLarge",
            "Response payload size exceeded maximum allowed payload size (%d bytes)." % MAX_RESPONSE_BYTES,
        )
    return body


def _encode(response: Any) -> bytes:
    # Source: AWS Lambda's runtimes escape characters beyond ASCII up to Python 3.11, and no more from 3.12 on.
    if sys.version_info >= (3, 12):
        try:
            return json.dumps(response, default=_plain, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            pass  # half of a surrogate pair has no UTF-8, but an escape
    return json.dumps(response, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Lambda's runtime accepts Decimal, which DynamoDB returns, and nothing else beyond JSON."""
    decimal = sys.modules.get("decimal")
    if decimal is not None and isinstance(value, decimal.Decimal):
        return float(value)
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)
