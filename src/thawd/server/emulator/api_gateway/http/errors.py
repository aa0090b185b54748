"""The errors that HTTP APIs answer. Source: observed answers of AWS, as users report them."""

from __future__ import annotations

import json

from thawd.gateway.aws.api_messages import ApiResponse, Headers

_WORDS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpError(Exception):
    """An HTTP API refuses a request or fails.

    Args:
        status: HTTP status.
        message: message for the client; None: the status's own.
        headers: further headers of the answer.
        reason: the problem, for the operator; "": nothing is printed.
    """

    def __init__(
        self, status: int, message: str | None = None, *, headers: Headers | None = None, reason: str = ""
    ) -> None:
        super().__init__(reason or message or str(status))
        self.status = status
        self.message = _WORDS[status] if message is None else message
        self.headers = headers or []
        self.reason = reason

    def response(self) -> ApiResponse:
        """Return the answer."""
        body = json.dumps({"message": self.message}, separators=(",", ":")).encode()
        return ApiResponse(self.status, [("Content-Type", "application/json"), *self.headers], body)
