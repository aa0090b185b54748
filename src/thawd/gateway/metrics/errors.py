"""Errors of the CloudWatch metrics API. `code` is what older SDKs see, `type` what current ones see.

Source: CloudWatch API reference; the error shapes of AWS's service model.
"""

from __future__ import annotations

from typing import ClassVar

from thawd.errors import ThawdError


class MetricsApiError(ThawdError):
    """Base class.

    Attributes:
        code: the error's code in the query protocol.
    """

    code: ClassVar[str] = "InternalServiceError"
    type = "InternalServiceFault"


class InvalidParameterValueException(MetricsApiError):
    """The value of a parameter is not allowed (HTTP 400)."""

    code = "InvalidParameterValue"
    type = "InvalidParameterValueException"
    status = 400
    retryable = False


class InvalidParameterCombinationException(MetricsApiError):
    """Parameters exclude each other, or ask for too much (HTTP 400)."""

    code = "InvalidParameterCombination"
    type = "InvalidParameterCombinationException"
    status = 400
    retryable = False


class MissingParameterException(MetricsApiError):
    """A parameter is missing (HTTP 400)."""

    code = "MissingParameter"
    type = "MissingRequiredParameterException"
    status = 400
    retryable = False


class MetricsValidationError(MetricsApiError):
    """A query or an expression is not valid (HTTP 400)."""

    code = "ValidationError"
    type = "ValidationError"
    status = 400
    retryable = False
