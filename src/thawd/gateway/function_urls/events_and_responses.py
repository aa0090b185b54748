"""Makes events from requests to function URLs, and responses from handlers' answers.

Both have the form of API Gateway's payload format 2.0, with small changes.

No side effects.

Source: AWS Lambda developer guide, "Invoking Lambda function URLs", request and response payload formats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from thawd.gateway.function_urls.table import PATH_PREFIX, Url
from thawd.gateway.role_keys import Identity
from thawd.gateway.routes import payload_format_2
from thawd.gateway.routes.payload_formats import IntegrationRequest, Response, decode_answer
from thawd.resources import ACCOUNT_ID


@dataclass(frozen=True, slots=True)
class Caller:
    """The signer of a request.

    Attributes:
        access_key: access key id.
        identity: the function that signed; None: somebody else did.
    """

    access_key: str
    identity: Identity | None = None

    def described(self) -> dict[str, Any]:
        """The signer as an object for the field ``requestContext.authorizer.iam`` of the event."""
        user_id, arn = self.access_key, f"arn:aws:iam::{ACCOUNT_ID}:user/{self.access_key}"
        if self.identity is not None:
            user_id, arn = self.identity.user_id, self.identity.arn
        return {
            "accessKey": self.access_key,
            "accountId": ACCOUNT_ID,
            "callerId": user_id,
            "cognitoIdentity": None,
            "principalOrgId": None,
            "userArn": arn,
            "userId": user_id,
        }


def event(
    request: IntegrationRequest, url: Url, caller: Caller | None, *, now_s: float, request_id: str
) -> dict[str, Any]:
    """The event for `request` to `url`.

    Args:
        request: as received; the prefix ``/_urls/ID`` is removed from its path.
        url: the URL that was called.
        caller: the signer of the request; None when the URL requires no signature.
        now_s: seconds since the epoch.
        request_id: the invocation's request id.
    """
    prefix = PATH_PREFIX + url.identifier
    by_path = request.raw_path.startswith(prefix)
    path = request.raw_path.removeprefix(prefix) or "/"
    made = payload_format_2.event(replace(request, raw_path=path), now_s=now_s, request_id=request_id)
    host = made["headers"].get("host", "").rpartition(":")[0] or made["headers"].get("host", "")
    if by_path:
        # Applications make links with it. On AWS, a function URL has no path of its own.
        made["headers"]["x-forwarded-prefix"] = prefix
    elif made["headers"].get("x-forwarded-prefix") == prefix:
        del made["headers"]["x-forwarded-prefix"]  # the client has sent what only thawd says
    made["pathParameters"] = None
    made["stageVariables"] = None
    made["requestContext"] |= {
        "accountId": "anonymous" if caller is None else ACCOUNT_ID,
        "apiId": url.identifier,
        "authentication": None,
        "authorizer": None if caller is None else {"iam": caller.described()},
        "domainName": url.domain if by_path else host.lower(),
        "domainPrefix": url.identifier,
    }
    return made


def response(payload: bytes) -> Response:
    """The HTTP response for a handler's answer.

    An answer with ``statusCode`` describes the response; a ``body`` that is not text is sent as JSON. Any other answer
    becomes the response's body: text as it is, other values as JSON without spaces. Observed on AWS.

    Raises:
        MalformedResponseError: the answer has a ``statusCode`` but fields that Lambda does not accept.
    """
    answer = decode_answer(payload)
    if not isinstance(answer, dict) or "statusCode" not in answer:
        # `format` changes no number, while decoding would lose digits of very large ones.
        body = answer.encode("utf-8", "replace") if isinstance(answer, str) else msgspec.json.format(payload, indent=-1)
        return Response(200, [(b"content-type", b"application/json")], body)
    if isinstance(answer.get("body"), (dict, list)):
        answer["body"] = msgspec.json.encode(answer["body"]).decode()
    return payload_format_2.response_of(answer, content_type=b"application/json")
