"""Calls a WSGI application, such as one of Flask or Django, with the request in an event.

Source: PEP 3333, "Python Web Server Gateway Interface v1.0.1".
"""

import io
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from thawd.runtime.faults import Fault
from thawd.runtime.http_apps.handler import HttpHandler
from thawd.runtime.http_apps.requests import HttpRequest
from thawd.runtime.http_apps.responses import INVALID_ANSWER, Response

_WITHOUT_PREFIX = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}


class WsgiHandler(HttpHandler):
    """A WSGI application as a handler."""

    def __init__(self, application: Any) -> None:
        self.application = application

    def serve(self, request: HttpRequest, response: Response, event: Any, context: Any) -> None:
        """See `HttpHandler.serve`."""
        variables = _environ(request)
        variables["aws.event"], variables["aws.context"] = event, context
        answer = _Answer(response)
        parts = self.application(variables, answer.start)
        try:
            for part in parts:
                if part:
                    answer.write(part, is_only=_is_only(parts, part, answer.length))
            answer.end()
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()


class _Answer:
    """Takes what the application passes to ``start_response`` and ``write``, and the parts that it returns.

    Attributes:
        length: the body's length in bytes by its header; None: there is none.
    """

    def __init__(self, response: Response) -> None:
        self.length: Optional[int] = None
        self._response = response
        self._started: Optional[Tuple[int, List[Tuple[str, str]]]] = None

    def start(self, status: str, headers: List[Tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        """The application's ``start_response``."""
        if exc_info is not None and self._response.begun:
            raise exc_info[1].with_traceback(exc_info[2])
        if exc_info is None and self._started is not None:
            raise Fault(INVALID_ANSWER, "the application has called start_response twice")
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        self.length = int(lengths[0]) if lengths and lengths[0].isdecimal() else None
        self._started = int(status.split(" ", 1)[0]), list(headers)
        return self.write

    def write(self, part: bytes, *, is_only: bool = False) -> None:
        """Take a part of the body. `is_only` says that it is the whole body."""
        self._begin()
        if self._response.complete:
            return
        self._response.write(bytes(part), more=not is_only)

    def end(self) -> None:
        """Take the end of the body."""
        self._begin()
        if not self._response.complete:
            self._response.write(b"", more=False)

    def _begin(self) -> None:
        if self._response.begun:
            return
        if self._started is None:
            raise Fault(INVALID_ANSWER, "the application has sent a body before it called start_response")
        self._response.begin(*self._started)


def _is_only(parts: Any, part: bytes, length: Optional[int]) -> bool:
    """Whether no other part follows: so it is with a list of one, and with a body of the announced length."""
    return len(part) == length or (isinstance(parts, (list, tuple)) and len(parts) == 1)


def _environ(request: HttpRequest) -> Dict[str, Any]:
    name, port = request.server
    variables: Dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": request.prefix,
        "PATH_INFO": request.path.encode().decode("latin-1"),
        "QUERY_STRING": request.query,
        "REQUEST_URI": request.raw_path + ("?" + request.query if request.query else ""),
        "SERVER_NAME": name,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": "HTTP/" + request.http_version,
        "REMOTE_ADDR": request.client,
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for header, value in request.headers:
        key = _WITHOUT_PREFIX.get(header)
        if key == "CONTENT_LENGTH" or "_" in header:
            continue  # the body's length is known, and a name with an underscore could pass for another header
        key = key or "HTTP_" + header.upper().replace("-", "_")
        variables[key] = "%s,%s" % (variables[key], value) if key in variables else value
    return variables
