"""The invoke phase: one frame in, the handler, one frame out, until the platform closes the channel."""

import json
import os
import sys
import time
from typing import Any, NoReturn, Tuple

from thawd import wire
from thawd.runtime import faults, logs, process, services
from thawd.runtime.channel import Channel
from thawd.runtime.context import LambdaContext
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler, load

# Source: Lambda quotas, "Invocation payload (request and response)".
MAX_RESPONSE_BYTES = 6_291_556
INIT_FAILED = 1


def main(mode: str, control: int, service: int, lifeline: int) -> NoReturn:
    """Run the init phase, then serve as an environment or fork environments as a template; never returns."""
    started_s = time.monotonic()
    process.die_with_platform(lifeline)
    process.keep_private([control, service, lifeline])
    process.limit_descriptors()
    process.set_up_output()
    logs.install()
    channel = Channel(control)
    services.connect(service)
    handler = _init(channel)
    init_ms = (time.monotonic() - started_s) * 1000
    if mode == "template":
        from thawd.runtime import template

        channel, init_ms = template.run(channel, init_ms=init_ms, own_fds=[service, lifeline])
        # From here on this is a forked environment.
    channel.send(wire.READY, {"pid": os.getpid(), "init_ms": init_ms})
    serve(channel, handler)


def _init(channel: Channel) -> Handler:
    """Load the handler, or tell the platform why not and end."""
    try:
        return load(os.environ["_HANDLER"], os.environ["LAMBDA_TASK_ROOT"])
    except SystemExit as error:
        process.flush_output()
        fault = Fault("Runtime.ExitError", "Runtime exited with error: exit status %s" % _status(error), error)
        told = faults.report(fault)
    except BaseException as error:  # whatever the user's module raised
        told = faults.report(error)
    process.flush_output()
    faults.write_log(told.text)
    channel.send(wire.INIT_ERROR, {"type": told.error_type, "message": told.message}, told.document)
    # Not sys.exit: a non-daemon thread started by the module would keep the process alive.
    os._exit(INIT_FAILED)


def _status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def serve(channel: Channel, handler: Handler) -> NoReturn:
    """Answer invocations one at a time; ends the process when the platform closes the channel."""
    peak = process.PeakMemory()
    owner = os.getpid()
    while True:
        frame = channel.receive()
        if frame is None or frame.kind != wire.INVOKE:
            os._exit(0)
        started_s = time.monotonic()
        body, failed = _invoke(handler, frame, started_s)
        process.flush_output()
        if os.getpid() != owner:
            os._exit(0)  # a child that the handler forked has come back from it too
        duration_ms = (time.monotonic() - started_s) * 1000
        head = {"duration_ms": duration_ms, "peak_kib": peak.kib(), "failed": failed}
        try:
            channel.send(wire.RESULT, head, body)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def _invoke(handler: Handler, frame: wire.Frame, now_s: float) -> Tuple[bytes, bool]:
    """Run the handler on one event: the answer as JSON text, and whether it is an error document."""
    head = frame.head
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
        return _marshal(handler(_unmarshal(frame.body), context)), False
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
