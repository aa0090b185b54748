"""What handlers that are web applications share: they take HTTP events, and stream their answers if the caller can."""

from typing import Any, Callable, Dict, Optional

from thawd.runtime import faults
from thawd.runtime.http_apps.requests import HttpRequest, request_of
from thawd.runtime.http_apps.responses import Response
from thawd.streaming import Stream

_NO_WEBSOCKETS = (
    b"thawd does not serve WebSockets, because an environment handles one request at a time and ends when no requests "
    b"come. Use server-sent events (text/event-stream) for messages to the client.\n"
)
_PLAIN = ("content-type", "text/plain; charset=utf-8")


class HttpHandler:
    """A handler that answers HTTP requests. Subclasses define `serve`.

    Attributes:
        streams: always True; the runtime recognises a streaming handler by this attribute.
        answers_whole: always True: `__call__` returns the whole answer as a document, for callers that take no parts.
        closing: runs the application's shutdown; None: it has none.
        fails_on_exception: whether the invocation fails with an exception that `serve` raises. If not, the log gets the
            exception and the client status 500, as from other servers.
    """

    streams = True
    answers_whole = True
    fails_on_exception = False

    @property
    def closing(self) -> "Optional[Callable[[], None]]":
        """Runs the application's shutdown; None: it has none."""
        return None

    def serve(self, request: HttpRequest, response: Response, event: Any, context: Any) -> None:
        """Answer `request` through `response`."""
        raise NotImplementedError

    def run(self, event: Any, stream: Stream, context: Any) -> Optional[bytes]:
        """Answer the request in `event`. Returns the body if it is to be returned whole; None: it was sent."""
        _, response = self._answer(event, context, stream)
        return response.rest()

    def __call__(self, event: Any, context: Any) -> Dict[str, Any]:
        """Answer the request in `event`; returns the answer as Lambda's HTTP integrations expect it."""
        request, response = self._answer(event, context, None)
        return response.document(is_format_1=request.is_format_1)

    def _answer(self, event: Any, context: Any, stream: Optional[Stream]) -> "tuple[HttpRequest, Response]":
        request, response = self.begun(event, stream)
        if response.begun:
            return request, response
        try:
            self.serve(request, response, event, context)
        except Exception as error:
            self.failed(error, response, context)
        return request, response

    def begun(self, event: Any, stream: Optional[Stream]) -> "tuple[HttpRequest, Response]":
        """Return the request in `event` and the answer to it, which is complete if the request is refused."""
        request = request_of(event)
        response = Response(stream)
        if request.asks_for_websocket:
            response.begin(501, [_PLAIN])
            response.write(_NO_WEBSOCKETS, more=False)
        return request, response

    def failed(self, error: Exception, response: Response, context: Any) -> None:
        """Answer 500, as other servers do, because the application has raised `error`; the log has the traceback.

        Raises:
            Exception: `error`, if the client must notice that its answer is incomplete, or the invocation is to fail.
        """
        if self.fails_on_exception or (response.streams and not response.complete):
            raise error
        report_exception(error, context)
        if not response.complete:
            response.replace(500, [_PLAIN])
            response.write(b"Internal Server Error", more=False)


def report_exception(error: BaseException, context: Any) -> None:
    """Write an exception that an application has not handled to the log."""
    from thawd.runtime import invoking  # not in the layer of `deployed_application`, which has a function of its own

    request_id = getattr(context, "aws_request_id", "")
    invoking.write_failure(faults.report(error, request_id), error)
    faults.note_logged(request_id, error)
