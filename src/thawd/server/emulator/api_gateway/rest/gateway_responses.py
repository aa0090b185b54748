"""Gateway responses: the answers of a REST API if API Gateway itself refuses a request or fails. No side effects.

Source: API Gateway developer guide, "Gateway response types for API Gateway" and "Gateway responses in API Gateway";
the error types and the forms of the bodies were recorded on AWS.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from thawd.gateway.aws.api_messages import ApiResponse, Headers
from thawd.server.emulator.api_gateway.rest.definitions import Fields


class _Kind(NamedTuple):
    status: int
    error_type: str
    message: str


KINDS: dict[str, _Kind] = {
    "ACCESS_DENIED": _Kind(403, "AccessDeniedException", "User is not authorized to access this resource"),
    "API_CONFIGURATION_ERROR": _Kind(500, "InternalServerErrorException", "Internal server error"),
    "AUTHORIZER_CONFIGURATION_ERROR": _Kind(500, "AuthorizerConfigurationException", ""),
    "AUTHORIZER_FAILURE": _Kind(500, "AuthorizerConfigurationException", ""),
    "BAD_REQUEST_BODY": _Kind(400, "BadRequestException", "Invalid request body"),
    "BAD_REQUEST_PARAMETERS": _Kind(400, "BadRequestException", "Missing required request parameters"),
    "DEFAULT_5XX": _Kind(500, "InternalServerErrorException", "Internal server error"),
    "EXPIRED_TOKEN": _Kind(403, "ExpiredTokenException", "The security token included in the request is expired"),
    "INTEGRATION_FAILURE": _Kind(500, "InternalServerErrorException", "Internal server error"),
    "INTEGRATION_TIMEOUT": _Kind(504, "InternalServerErrorException", "Endpoint request timed out"),
    "INVALID_API_KEY": _Kind(403, "ForbiddenException", "Forbidden"),
    "INVALID_SIGNATURE": _Kind(403, "InvalidSignatureException", "Forbidden"),
    "MISSING_AUTHENTICATION_TOKEN": _Kind(403, "MissingAuthenticationTokenException", "Missing Authentication Token"),
    "QUOTA_EXCEEDED": _Kind(429, "LimitExceededException", "Limit Exceeded"),
    "REQUEST_TOO_LARGE": _Kind(413, "RequestTooLargeException", "HTTP content length exceeded 10485760 bytes."),
    "RESOURCE_NOT_FOUND": _Kind(404, "NotFoundException", "Not Found"),
    "THROTTLED": _Kind(429, "TooManyRequestsException", "Too Many Requests"),
    "UNAUTHORIZED": _Kind(401, "UnauthorizedException", "Unauthorized"),
    "UNSUPPORTED_MEDIA_TYPE": _Kind(415, "BadRequestException", "Unsupported Media Type"),
}
# AWS's own messages about failed integrations have a space after the colon.
_SPACED = ("API_CONFIGURATION_ERROR", "DEFAULT_5XX", "INTEGRATION_FAILURE", "INTEGRATION_TIMEOUT")
_HEADER = "gatewayresponse.header."


class GatewayError(Exception):
    """API Gateway refuses a request or fails.

    Args:
        kind: type of the gateway response, such as ``MISSING_AUTHENTICATION_TOKEN``.
        message: message for the client; None: the kind's own.
        status: HTTP status; None: the kind's own.
        reason: the problem, for the operator; "": nothing is printed.
    """

    def __init__(self, kind: str, message: str | None = None, *, status: int | None = None, reason: str = "") -> None:
        super().__init__(reason or message or kind)
        self.kind = kind
        self.message = KINDS[kind].message if message is None else message
        self.status = status or KINDS[kind].status
        self.error_type = KINDS[kind].error_type
        self.reason = reason


def response_for(
    error: GatewayError, configured: dict[str, Fields], *, render: Callable[[str, Fields], str], value_of: Any
) -> ApiResponse:
    """Return the response for an error.

    Args:
        error: the error.
        configured: the gateway responses of the API, by type.
        render: renders a template, with the variables of ``$context.error``.
        value_of: the value of a mapping expression such as ``method.request.header.origin`` or ``'*'``; None: none.
    """
    setting = configured.get(error.kind) or {}
    default = configured.get("DEFAULT_5XX" if error.status >= 500 else "DEFAULT_4XX") or {}
    status = int(setting.get("statusCode") or default.get("statusCode") or error.status)
    parameters = {**(default.get("responseParameters") or {}), **(setting.get("responseParameters") or {})}
    templates = setting.get("responseTemplates") or default.get("responseTemplates") or {}
    headers: Headers = [("x-amzn-ErrorType", error.error_type)]
    for name, expression in parameters.items():
        value = value_of(expression)
        if value is not None:
            headers.append((name.removeprefix(_HEADER), str(value)))
    content_type, template = next(iter(templates.items()), ("application/json", None))
    body = _plain(error) if template is None else render(template, _variables(error))
    if not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", content_type))
    return ApiResponse(status, headers, body.encode())


def _variables(error: GatewayError) -> Fields:
    message = error.message or None
    return {
        "message": message,
        "messageString": json.dumps(message),
        "responseType": error.kind,
        "validationErrorString": error.reason,
    }


def _plain(error: GatewayError) -> str:
    message = json.dumps(error.message or None)
    if error.kind in _SPACED:
        return f'{{"message": {message}}}'
    return f'{{"Message":{message}}}' if error.kind == "ACCESS_DENIED" else f'{{"message":{message}}}'
