"""AWS Lambda's Runtime API: an HTTP endpoint from which an environment's program, for example Node, gets invocations.

Each environment with such a program has its own endpoint, ``http://127.0.0.1:PORT``. The program finds host and port in
the variable ``AWS_LAMBDA_RUNTIME_API``. `Environment` uses the endpoint like the control channel of thawd's own
runtime: the endpoint turns the program's requests into READY and INIT_ERROR frames and results, and it answers the
program's ``next`` request with the event of an INVOKE frame.

Guarantees:
- the program gets a new invocation only when it has asked for one, and every extension for its next event;
- a result is passed on when the program asks for the next invocation or has ended, so the next invocation never gets
  an environment that is still busy or about to end;
- each request is checked against the state of its sender, which is the program or an extension; a request that this
  state does not allow is refused and changes nothing.

Source: AWS Lambda developer guide, "Using the Lambda runtime API for custom runtimes". Error types, states and their
names are those of AWS's Runtime Interface Emulator.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from thawd.environments.init_phase import error_document
from thawd.environments.peak_memory import PeakMemory
from thawd.environments.runtime_api.extensions_api import ExtensionsApi, refuse
from thawd.environments.runtime_api.http_server import HttpConnection, Request
from thawd.environments.runtime_api.messages import Current, broken_off, document_of, event_of, message_of, type_of
from thawd.invocation import MAX_PAYLOAD_BYTES
from thawd.wire import frames

_RUNTIME = "/2018-06-01/runtime/"
_INVOCATION = "/2018-06-01/runtime/invocation/"
_EXTENSION = "/2020-01-01/extension/"
_TELEMETRY = ("/2020-08-15/logs", "/2022-07-01/telemetry")
_OK = b'{"status":"OK"}\n'
# A program that has reported an init error has this long to end by itself, so that its last output gets into the log.
_INIT_ERROR_S = 0.3
_decode = msgspec.json.Decoder().decode

Answer = Callable[[dict[str, Any], bytes], None]


class ProgramState(enum.StrEnum):
    """The state of the program; the names are AWS's."""

    STARTED = "Started"
    INIT_ERROR = "InitError"
    RESTORING = "Restoring"
    RESTORE_ERROR = "RestoreError"
    READY = "Ready"
    """The program has asked for the next invocation. The state remains READY while the program runs the invocation."""
    RESPONDING = "InvocationResponse"
    RESPONSE_SENT = "ResponseSent"


_MAY_ASK = (ProgramState.STARTED, ProgramState.RESTORING, ProgramState.READY, ProgramState.RESPONSE_SENT)


class RuntimeApi:
    """The endpoint of one environment.

    Attributes:
        extensions: the Extensions API of the environment.
        connections: open connections.
        pid: process id of the program; None before it has been started.
        address: host and port; empty before `open` has returned.
    """

    def __init__(self, extensions: ExtensionsApi, *, snap_start: bool) -> None:
        self.extensions = extensions
        self.extensions.on_change = self._check_ready
        self.connections: set[HttpConnection] = set()
        self.pid: int | None = None
        self._snap_start = snap_start
        self._state = ProgramState.STARTED
        self._parked: Request | None = None
        self._streaming: Request | None = None  # the response that is being passed on in parts
        self._current: Current | None = None
        self._last_id = ""
        self._result: tuple[dict[str, Any], bytes] | None = None
        self._init_error: tuple[str, bytes] | None = None
        self._is_ready = False
        self._has_ended = False
        self._is_truncated = False
        self._peak: PeakMemory | None = None
        self._server: asyncio.Server | None = None
        self._on_frame: Callable[[int, Any, bytes], None] = lambda kind, head, body: None
        self._on_answer: Answer = lambda head, body: None
        self._on_lost: Callable[[], None] = lambda: None
        self.address = ""

    async def open(self) -> None:
        """Listen on a free port, and set `address`.

        Raises:
            OSError: no descriptors or ports left.
        """
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        try:
            self._server = await loop.create_server(
                lambda: HttpConnection(self, limit_bytes=MAX_PAYLOAD_BYTES), sock=listening
            )
        except BaseException:
            listening.close()
            raise
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"

    def attach(
        self, on_frame: Callable[[int, Any, bytes], None], *, on_answer: Answer, on_lost: Callable[[], None]
    ) -> None:
        """Set the callbacks through which the endpoint reports to the environment.

        Args:
            on_frame: gets READY, INIT_ERROR and PART as if they had arrived as frames.
            on_answer: gets the head of a RESULT and the payload, which may be any bytes.
            on_lost: called when nothing more can arrive from the program, possibly more than once.
        """
        self._on_frame = on_frame
        self._on_answer = on_answer
        self._on_lost = on_lost

    def send(self, kind: int, head: bytes, body: bytes = b"") -> None:
        """Accept an invocation for the program; `head` is the head of an INVOKE frame."""
        assert kind == frames.INVOKE
        self._current = event_of(_decode(head), body)
        self._deliver()

    def pause(self) -> None:
        """Stop reading a streamed response; the program then blocks when it writes more."""
        if self._streaming is not None:
            self._streaming.pause()

    def resume(self) -> None:
        """Continue to read after `pause`."""
        if self._streaming is not None:
            self._streaming.resume()

    def close(self) -> None:
        """Stop listening and end all connections. May be called twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.abort()

    def runtime_ended(self) -> None:
        """Record that the program has ended. The last answer that it completed is passed on; no other will arrive."""
        self._has_ended = True
        if self._is_truncated:
            self._result = None  # the exit status of the program explains more than a truncated response
        self._pass_on()
        self._report_init_error()
        self._check_lost()

    # Methods that connections call.

    def begin(self, request: Request) -> None:
        """See `http.Handler`. If the program streams its response to a caller that takes parts, pass on each part."""
        current = self._current
        if request.method != "POST" or b"origin" in request.headers:
            return
        if (
            request.headers.get(b"lambda-runtime-function-response-mode") == b"streaming"
            and current is not None
            and current.begun
            and current.limit_bytes is not None
            and self._state is ProgramState.READY
            and request.path == f"{_INVOCATION}{current.identifier}/response"
        ):
            self._state = ProgramState.RESPONDING
            self._streaming = request
            request.limit_bytes = current.limit_bytes
            request.sink = lambda data: self._part(request, data)
            request.on_lost = self._truncated

    def _part(self, request: Request, data: bytes) -> None:
        if not request.is_too_large:
            self._on_frame(frames.PART, {"type": type_of(request)}, data)

    def _truncated(self) -> None:
        """The connection was lost during a streamed response: report an error. The caller may already have parts."""
        if self._current is not None and self._streaming is not None and not self._has_ended:
            message = "The connection was lost in the middle of the response"
            self._answered(error_document("Runtime.TruncatedResponse", message), failed=True)
            self._is_truncated = True

    def handle(self, request: Request) -> None:
        """See `http.Handler`."""
        path = request.path
        if b"origin" in request.headers:
            # Only web pages send this header. A page in a browser on this machine must not read a function's events.
            refuse(request, 403, "Runtime.ForeignOrigin", "The Runtime API answers the function's own programs only")
        elif path.startswith(_INVOCATION):
            self._invocation(request, path[len(_INVOCATION) :])
        elif path.startswith(_EXTENSION):
            self.extensions.handle(request, path[len(_EXTENSION) :])
        elif path in _TELEMETRY:
            # Like AWS's emulator, thawd offers neither API and answers 202, so that extensions continue without them.
            name = "Logs" if path == _TELEMETRY[0] else "Telemetry"
            refuse(request, 202, f"{name}.NotSupported", f"{name} API is not supported")
        elif path.startswith(_RUNTIME):
            self._phase(request, path[len(_RUNTIME) :])
        else:
            _unknown(request)

    def closed(self, connection: HttpConnection) -> None:
        """See `http.Handler`."""
        self.extensions.connections.discard(connection)
        if self._has_ended:
            self._check_lost()

    def _invocation(self, request: Request, rest: str) -> None:
        if rest == "next":
            if _is_method(request, "GET"):
                self._next(request)
            return
        identifier, _, operation = rest.partition("/")
        if operation not in ("response", "error"):
            _unknown(request)
        elif not _is_method(request, "POST"):
            return
        elif not identifier or identifier != self._last_id:
            refuse(request, 400, "InvalidRequestID", "Invalid request ID")
        elif self._current is None or not self._current.begun or not self._may_answer(request):
            self._refuse_transition(request, ProgramState.RESPONDING)
        elif operation == "response":
            self._response(request)
        else:
            self._error(request)

    def _may_answer(self, request: Request) -> bool:
        return self._state is ProgramState.READY or (self._streaming is request and request.path.endswith("/response"))

    def _phase(self, request: Request, operation: str) -> None:
        if operation == "init/error":
            if _is_method(request, "POST"):
                self._init_failed(request, ProgramState.INIT_ERROR, (ProgramState.STARTED, ProgramState.RESTORING))
        elif operation == "restore/error":
            if _is_method(request, "POST"):
                self._init_failed(request, ProgramState.RESTORE_ERROR, (ProgramState.RESTORING,))
        elif operation == "restore/next":
            if _is_method(request, "GET"):
                self._restore(request)
        else:
            _unknown(request)

    # The operations of the Runtime API.

    def _next(self, request: Request) -> None:
        if self._state not in _MAY_ASK:
            self._refuse_transition(request, ProgramState.READY)
            return
        self._state = ProgramState.READY
        self._is_truncated = False
        replaced, self._parked = self._parked, request
        if replaced is not None:
            self._refuse_transition(replaced, ProgramState.READY)
        request.on_lost = lambda: self._unpark(request)
        self._pass_on()
        self._check_ready()

    def _unpark(self, request: Request) -> None:
        if self._parked is request:
            self._parked = None

    def _check_ready(self) -> None:
        """The program or an extension has begun to wait. Report READY the first time that all wait; then `_deliver`."""
        if not self._is_ready and self._parked is not None and self.extensions.all_waiting():
            self._is_ready = True
            self.extensions.close_registration()
            self._on_frame(frames.READY, {}, b"")
        self._deliver()

    def _deliver(self) -> None:
        current, parked = self._current, self._parked
        if current is None or parked is None:
            return
        if not current.begun:
            if not self.extensions.all_waiting():
                return
            current.begun = True
            self._last_id = current.identifier
            self.extensions.invoke(current.extension_event)
        # The invocation is kept until it is answered, so that a program that loses the connection can ask for it again.
        self._parked = None
        parked.answer(200, current.event, headers=current.headers)

    def _response(self, request: Request) -> None:
        mode = request.header(b"lambda-runtime-function-response-mode")
        if mode not in ("", "streaming", "buffered"):
            refuse(request, 400, "InvalidFunctionResponseMode", "Invalid function response mode")
            return
        if request.is_too_large:
            limit_bytes = request.limit_bytes
            message = f"Response payload size exceeded maximum allowed payload size ({limit_bytes} bytes)."
            self._answered(error_document("Function.ResponseSizeTooLarge", message), failed=True)
            message = f"Exceeded maximum allowed payload size ({limit_bytes} bytes)."
            refuse(request, 413, "RequestEntityTooLarge", message)
            return
        # If a streamed response failed in the middle, its trailers report the error. Source: see the module docstring.
        error_type = request.header(b"lambda-runtime-function-error-type") if mode == "streaming" else ""
        if error_type:
            self._answered(broken_off(request, error_type), failed=True)
        else:
            # In other modes the response is JSON, whatever its Content-Type header says.
            content_type = type_of(request) if mode == "streaming" else None
            self._answered(bytes(request.body), failed=False, content_type=content_type)
        request.answer(202, _OK)

    def _error(self, request: Request) -> None:
        self._answered(document_of(request), failed=True)
        request.answer(202, _OK)

    def _answered(self, payload: bytes, *, failed: bool, content_type: str | None = None) -> None:
        current, self._current = self._current, None
        self.resume()  # the response is complete; the program's next request must be read
        self._streaming = None
        assert current is not None
        if self._peak is None and self.pid is not None:
            self._peak = PeakMemory(self.pid)
        duration_ms = (time.monotonic() - current.sent_s) * 1000
        peak_kib = 0 if self._peak is None else self._peak.kib()
        head: dict[str, Any] = {"duration_ms": duration_ms, "peak_kib": peak_kib, "failed": failed}
        if content_type is not None:
            head["type"] = content_type
        self._result = head, payload
        self._state = ProgramState.RESPONSE_SENT
        if self._has_ended:
            self._pass_on()

    def _pass_on(self) -> None:
        """Pass the result on. The environment can then get its next invocation, unless the program has ended."""
        result, self._result = self._result, None
        if result is not None:
            self._on_answer(*result)

    def _restore(self, request: Request) -> None:
        if not self._snap_start or self._state is not ProgramState.STARTED:
            self._refuse_transition(request, ProgramState.RESTORING)
            return
        # The program sends this request after its before-snapshot hooks; the answer lets it run the after-restore
        # hooks. thawd does not freeze programs, so the same environment runs both, with nothing in between.
        self._state = ProgramState.RESTORING
        request.answer(200)

    def _init_failed(self, request: Request, state: ProgramState, allowed: tuple[ProgramState, ...]) -> None:
        if self._state not in allowed:
            self._refuse_transition(request, state)
            return
        self._state = state
        document = document_of(request)
        self._init_error = message_of(document), document
        request.answer(202, _OK)
        if self._has_ended:
            self._report_init_error()
        else:
            asyncio.get_running_loop().call_later(_INIT_ERROR_S, self._report_init_error)

    def _report_init_error(self) -> None:
        reported, self._init_error = self._init_error, None
        if reported is not None:
            self._on_frame(frames.INIT_ERROR, {"message": reported[0]}, reported[1])

    def _check_lost(self) -> None:
        # Extensions have their own connections, which stay open longer than the program's.
        if all(connection in self.extensions.connections for connection in self.connections):
            # Call `_on_lost` in the next iteration of the event loop: input that has already arrived is handled first.
            asyncio.get_running_loop().call_soon(self._on_lost)

    def _refuse_transition(self, request: Request, wanted: ProgramState) -> None:
        message = (
            f"State transition from {self._state} to {wanted} failed for runtime. "
            "Error: State transition is not allowed"
        )
        refuse(request, 403, "InvalidStateTransition", message)


def _is_method(request: Request, method: str) -> bool:
    if request.method == method:
        return True
    request.answer(405, headers=f"Allow: {method}\r\n".encode())
    return False


def _unknown(request: Request) -> None:
    request.answer(404, b"404 page not found\n", headers=b"Content-Type: text/plain\r\n")
