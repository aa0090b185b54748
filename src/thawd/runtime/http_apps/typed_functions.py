"""Calls a function that `thawd.function` has decorated, with the arguments in a request.

Also serves the function's page and its OpenAPI document.
"""

import json
from typing import Any, Callable, Dict, List, Optional
from urllib.parse import quote

from thawd import streaming
from thawd.runtime import handler_kinds, invoking
from thawd.runtime.faults import Fault
from thawd.runtime.http_apps.handler import HttpHandler
from thawd.runtime.http_apps.requests import HttpRequest, is_http
from thawd.runtime.http_apps.responses import Headers, Response
from thawd.typed import answers
from thawd.typed.conversion import Invalid, Mistake
from thawd.typed.openapi import document
from thawd.typed.page import page
from thawd.typed.parameters import Parameters, Unsupported

_DOCUMENT = "openapi.json"
_PAGE_HEADERS = [
    ("content-type", "text/html; charset=utf-8"),
    # The page loads nothing from elsewhere, and shows what users send.
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src blob:",
    ),
]


class TypedHandler(HttpHandler):
    """A typed function as a handler.

    Raises:
        Fault: a parameter has no annotation, or one that cannot be resolved.
    """

    fails_on_exception = True

    def __init__(self, typed: Any) -> None:
        self._function = typed.__wrapped__
        try:
            self._parameters = Parameters(self._function)
        except (TypeError, NameError, AttributeError) as error:
            raise Fault("Runtime.InvalidTypedFunction", "@thawd.function: %s" % error, error) from error
        if handler_kinds.is_asynchronous(self._function):
            # Only for such functions, because asyncio takes long to import. `invoking.finished` uses it.
            from thawd.runtime import coroutines  # noqa: F401

    def __call__(self, event: Any, context: Any) -> Any:
        """Answer the request in `event`. An event that is no HTTP request is an object with the arguments."""
        if is_http(event):
            return super().__call__(event, context)
        try:
            value = self._called(self._parameters.of_event(event))
        except Invalid as invalid:
            raise Fault("Runtime.InvalidEvent", "the event does not fit the function: %s" % invalid) from None
        if self._is_stream(value):
            collected: List[Any] = []
            self._pass_each(value, collected.append)
            value = collected
        return answers.simple(value)

    def serve(self, request: HttpRequest, response: Response, event: Any, context: Any) -> None:
        """See `HttpHandler.serve`."""
        if request.method in ("GET", "HEAD") and self._serves_page(request, response):
            return
        if request.method not in ("GET", "HEAD", "POST", "PUT"):
            _answer(response, 405, {"detail": "this function takes POST"}, [("allow", "GET, HEAD, POST, PUT")])
            return
        try:
            content_type = request.header("content-type")
            arguments = self._parameters.of_request(request.query, request.body, content_type)
        except Invalid as invalid:
            _answer(response, 422, {"detail": [_described(each) for each in invalid.mistakes]})
            return
        except Unsupported as unsupported:
            _answer(response, 415, {"detail": str(unsupported)})
            return
        try:
            value = self._called(arguments)
            if self._is_stream(value):
                self._stream(value, request, response)
                return
        except Exception as error:
            status = getattr(error, "status_code", None)  # of `thawd.HttpError`, FastAPI's and Starlette's errors
            if not isinstance(status, int) or not 400 <= status <= 599 or response.begun:
                raise
            _answer(response, status, {"detail": getattr(error, "detail", str(error))})
            return
        encoded = answers.encoded(value, request.header("accept"))
        response.begin(200, [("content-type", encoded.content_type), ("content-length", str(len(encoded.body)))])
        response.write(encoded.body, more=False)

    def _serves_page(self, request: HttpRequest, response: Response) -> bool:
        folder, _, last = request.path.rpartition("/")
        if last == _DOCUMENT:
            made = document(self._function, self._parameters, path=request.prefix + folder or "/")
            _answer(response, 200, made)
            return True
        if request.query or "text/html" not in request.header("accept"):
            return False
        # Relative to the page, "openapi.json" would be beside it, unless the path ends in a slash. Without "./", a
        # colon in the client's path could make the link one of another scheme, such as "javascript:".
        name = "./" + (last and quote(last, safe="") + "/")
        made_page = page(self._function, self._parameters, document=name + _DOCUMENT, address="")
        response.begin(200, list(_PAGE_HEADERS))
        response.write(made_page.encode(), more=False)
        return True

    def _called(self, arguments: Dict[str, Any]) -> Any:
        value = self._function(**arguments)
        return invoking.finished(value) if hasattr(type(value), "__await__") else value

    def _is_stream(self, value: Any) -> bool:
        return hasattr(type(value), "__next__") or hasattr(type(value), "__anext__")

    def _pass_each(self, values: Any, take: Callable[[Any], None]) -> None:
        if hasattr(type(values), "__next__"):
            for value in values:
                take(value)
        else:
            invoking.finished(streaming.pass_each(values, take))

    def _stream(self, value: Any, request: HttpRequest, response: Response) -> None:
        accept = request.header("accept")

        def send(each: Any) -> None:
            encoded = answers.part(each, accept)
            if not response.begun:
                response.begin(200, [("content-type", encoded.content_type)])
            response.write(encoded.body, more=True)

        self._pass_each(value, send)
        if not response.begun:
            response.begin(200, [("content-type", answers.TEXT)])
        response.write(b"", more=False)


def _described(mistake: Mistake) -> Dict[str, Any]:
    return {"loc": list(mistake.loc), "msg": mistake.msg, "type": mistake.type}


def _answer(response: Response, status: int, value: Any, more: Optional[Headers] = None) -> None:
    body = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace")
    headers = [("content-type", "application/json"), ("content-length", str(len(body))), *(more or ())]
    response.begin(status, headers)
    response.write(body, more=False)
