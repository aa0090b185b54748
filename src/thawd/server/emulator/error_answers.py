"""Answers with an error document in the client's protocol if moto lacks an operation or fails inside.

moto raises an exception for an operation that it does not have, and answers an unknown address with a page of HTML.
AWS's clients cannot read these. This module runs in the emulator's own process, around moto's server.

The status is 501, because AWS's SDKs do not retry it, unlike 500. Errors inside moto have it too, because the same
request would fail again.
"""

from __future__ import annotations

import re
import traceback
import uuid
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from thawd.gateway.aws import error_documents
from thawd.gateway.aws.error_documents import ProtocolOf, ServiceError
from thawd.gateway.sigv4 import claimed_service

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

ACTION = "thawd.action"
"""The key in a request's environment for the operation that the request names in AWS's JSON or query protocol."""

_NO_SUCH, _FAILED = "NotImplemented", "InternalFailure"
_XML_CODE = re.compile(rb"<Code>([^<]+)</Code>")
_XML_MESSAGE = re.compile(rb"<Message>([^<]*)</Message>")


class NoSuchService(Exception):
    """moto has no service of the name that the request's signature contains."""


def create_app(service: Any) -> Any:
    """Make the part of moto's server that serves one service.

    Args:
        service: moto's name of the service; None: moto has no service for the request.

    Raises:
        NoSuchService: `service` is None.
    """
    from moto.moto_server.werkzeug_app import create_backend_app

    if service is None:
        raise NoSuchService
    return create_backend_app(service)


def in_protocol(application: Application, complain: Callable[[str], None]) -> Application:
    """Wrap moto's server, so that every error is a document that AWS's clients can read.

    Args:
        application: moto's server.
        complain: prints a line for the operator.
    """

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        began: list[Any] = []
        try:
            answer = application(environ, lambda *given: began.append(given))
            try:
                body = b"".join(answer)
            finally:
                close = getattr(answer, "close", None)
                if close is not None:
                    close()
            status, headers = began[-1][0], began[-1][1]
        except Exception as error:  # moto's server passes on every exception of moto
            return _refuse(environ, start_response, *_described(environ, error, complain))
        code = int(status.split()[0])
        if code < HTTPStatus.BAD_REQUEST or environ["REQUEST_METHOD"] == "HEAD" or _is_readable(environ, body):
            start_response(status, headers)
            return [body]
        return _refuse(environ, start_response, *_translated(environ, code, body))

    return serve


def _protocol(environ: dict[str, Any]) -> tuple[ProtocolOf, str | None]:
    query = str(environ.get("QUERY_STRING", ""))
    service = claimed_service(environ.get("HTTP_AUTHORIZATION", ""), query)

    def header(name: str) -> str | None:
        key = name.upper().replace("-", "_")
        found: str | None = environ.get(key if key == "CONTENT_TYPE" else f"HTTP_{key}")
        return found

    return error_documents.protocol_of(header, service=service, query=query), service


def _is_readable(environ: dict[str, Any], body: bytes) -> bool:
    protocol, service = _protocol(environ)
    return service is None or protocol.reads(body)


def _described(environ: dict[str, Any], error: Exception, complain: Callable[[str], None]) -> tuple[str, str, int]:
    """Code, message and status for an exception of moto."""
    operation = _operation(environ)
    if isinstance(error, NoSuchService):
        what = f"The emulator of thawd has no service {_protocol(environ)[1]}"
        return _NO_SUCH, what, HTTPStatus.NOT_IMPLEMENTED
    if isinstance(error, NotImplementedError):
        return _NO_SUCH, f"The emulator of thawd has no operation {operation}", HTTPStatus.NOT_IMPLEMENTED
    if isinstance(error, (ModuleNotFoundError, ImportError)):
        what = f"The emulator of thawd needs {error.name} for {operation}, which is not installed"
        return _NO_SUCH, what, HTTPStatus.NOT_IMPLEMENTED
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}"
    place = where.filename.rpartition("site-packages/")[2]
    complain(f"thawd: --aws: {operation} failed inside the emulator: {text} ({place}, line {where.lineno})")
    return _FAILED, f"The emulator of thawd failed inside: {text}", HTTPStatus.NOT_IMPLEMENTED


def _translated(environ: dict[str, Any], status: int, body: bytes) -> tuple[str, str, int]:
    """Code, message and status for an answer of moto that the caller cannot read."""
    code, message = _XML_CODE.search(body), _XML_MESSAGE.search(body)
    if code:  # an error in another protocol
        return code[1].decode(), message[1].decode() if message else "", status
    if b"<html" in body[:500].lower() or not body.strip():
        what = f"The emulator of thawd has no operation {_operation(environ)}"
        return _NO_SUCH, what, HTTPStatus.NOT_IMPLEMENTED
    return _FAILED, body[:500].decode(errors="replace"), status


def _operation(environ: dict[str, Any]) -> str:
    """Return a description of a request, for the operator."""
    service = _protocol(environ)[1] or "unsigned"
    action = environ.get(ACTION)
    return f"{service}:{action}" if action else f"{service}: {environ['REQUEST_METHOD']} {environ.get('PATH_INFO')}"


def _refuse(
    environ: dict[str, Any], start_response: Callable[..., Any], code: str, message: str, status: int
) -> list[bytes]:
    protocol, _ = _protocol(environ)
    error = ServiceError(code, message, int(status), str(uuid.uuid4()))
    headers, body = error_documents.headers(protocol, error), error_documents.document(protocol, error)
    if environ["REQUEST_METHOD"] == "HEAD":
        body = b""
    headers.append(("Content-Length", str(len(body))))
    start_response(f"{int(status)} {HTTPStatus(status).phrase}", headers)
    return [body]
