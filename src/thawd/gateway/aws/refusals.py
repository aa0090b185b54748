"""Refuses requests to services of AWS in the protocol of the caller, so that its SDK can read the error."""

from __future__ import annotations

from http import HTTPStatus

from thawd.gateway.aws import error_documents
from thawd.gateway.aws.error_documents import ServiceError
from thawd.gateway.http import Scope, Send, header, respond
from thawd.gateway.sigv4 import claimed_service
from thawd.invocation import new_request_id

# What answers these requests knows the protocol itself; APIs (execute-api) have none.
_NOT_FOREIGN = ("lambda", "logs", "monitoring", "s3", "execute-api")


def service_of(scope: Scope) -> str | None:
    """The service that the request's signature names, for example ``dynamodb``; None for an unsigned request."""
    authorization = (header(scope, b"authorization") or b"").decode("latin-1")
    query = scope["query_string"]
    service = claimed_service(authorization, query.decode("latin-1"))
    if service is None and b"AWSAccessKeyId=" in query and b"Signature=" in query:
        return "s3"  # only S3 accepts presigned URLs of signature version 2
    return service


def foreign_service(scope: Scope) -> str | None:
    """The service that a request is for, if thawd serves it with ``--aws`` at most; otherwise None.

    An unsigned request of an SDK to ``/`` is for such a service, too, although it does not name the service: the APIs
    that thawd itself serves have other paths, or their requests are recognised by a header.
    """
    service = service_of(scope)
    if service is None and scope["path"] == "/" and scope["method"] == "POST":
        is_of_sdk = header(scope, b"amz-sdk-request") is not None or header(scope, b"x-amz-target") is not None
        return "this service of AWS" if is_of_sdk else None
    return None if service in _NOT_FOREIGN else service


async def refuse(scope: Scope, send: Send, error: ServiceError) -> None:
    """Answer a request with an error in the protocol that the request shows."""

    def text(name: str) -> str | None:
        found = header(scope, name.encode())
        return None if found is None else found.decode("latin-1")

    query = scope["query_string"].decode("latin-1")
    protocol = error_documents.protocol_of(text, service=service_of(scope), query=query)
    headers = [
        (name.lower().encode(), value.encode("latin-1", "replace"))
        for name, value in error_documents.headers(protocol, error)
    ]
    body = b"" if scope["method"] == "HEAD" else error_documents.document(protocol, error)
    await respond(send, error.status, headers, body)


async def refuse_unserved(scope: Scope, send: Send, service: str) -> None:
    """Answer that this server does not serve an AWS service; 501 says to SDKs that it is of no use to try again."""
    message = (
        f"This server does not serve {service}; `thawd up --aws` serves it, with an emulator of AWS's services "
        "(this server was started without --aws)"
    )
    error = ServiceError("NotImplemented", message, HTTPStatus.NOT_IMPLEMENTED, new_request_id())
    await refuse(scope, send, error)
