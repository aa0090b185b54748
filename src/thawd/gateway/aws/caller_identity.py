"""Answers STS GetCallerIdentity for functions, which sign with temporary keys of thawd (`thawd.gateway.role_keys`).

All other requests to STS, and those of other callers, are passed on to the emulator.

Source: AWS STS API reference, "GetCallerIdentity", "Common Errors".
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from thawd.errors import ThawdError
from thawd.gateway.aws.error_documents import ServiceError
from thawd.gateway.aws.refusals import refuse
from thawd.gateway.http import Receive, Scope, Send, raw_path_of, read_body, respond
from thawd.gateway.role_keys import Identity, RoleKeys
from thawd.gateway.sigv4 import SignatureError, SignedRequest, signer, verify
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID

PassOn = Callable[[Scope, bytes, Send], Awaitable[object]]
# A request to STS contains at most a policy and a token.
_MAX_BODY_BYTES = 1 << 20
_ANSWER = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    "<Arn>{arn}</Arn><UserId>{user_id}</UserId><Account>{account}</Account></GetCallerIdentityResult>"
    "<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></GetCallerIdentityResponse>"
)


async def serve(scope: Scope, receive: Receive, send: Send, *, keys: RoleKeys, pass_on: PassOn) -> None:
    """Serve one request to STS.

    Args:
        scope: the request.
        receive: gives its body.
        send: sends the answer.
        keys: the keys of functions.
        pass_on: passes a request with its body on to the emulator.

    Raises:
        ClientGoneError: the client has gone away before it sent the whole body.
    """
    request_id = new_request_id()
    try:
        body = await read_body(scope, receive, limit_bytes=_MAX_BODY_BYTES, operation="sts")
        request = SignedRequest(
            method=scope["method"],
            raw_path=raw_path_of(scope),
            query=scope["query_string"].decode("latin-1"),
            headers=scope["headers"],
            body=body,
        )
        identity = _identity(request, keys)
    except SignatureError as error:
        await refuse(scope, send, ServiceError(error.code, error.message, 403, request_id))
    except ThawdError as error:
        await refuse(scope, send, ServiceError(error.type, error.message, error.status, request_id))
    else:
        if identity is None:
            await pass_on(scope, body, send)
            return
        text = _ANSWER.format(
            arn=escape(identity.arn), user_id=escape(identity.user_id), account=ACCOUNT_ID, request_id=request_id
        )
        headers = [(b"content-type", b"text/xml"), (b"x-amzn-requestid", request_id.encode())]
        await respond(send, 200, headers, text.encode())


def _identity(request: SignedRequest, keys: RoleKeys) -> Identity | None:
    """The function that asks who it is; None: the request is another one, or of somebody else.

    Raises:
        SignatureError: a function's key was used with a wrong signature or token (403).
    """
    fields = parse_qs(request.query) | parse_qs(request.body.decode("latin-1"))
    if fields.get("Action") != ["GetCallerIdentity"]:
        return None
    identity = keys.identity(signer(request) or "")
    if identity is not None:
        verify(request, keys, now_s=time.time(), service="sts")
    return identity
