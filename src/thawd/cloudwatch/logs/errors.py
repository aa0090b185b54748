"""Errors of the CloudWatch Logs API, with AWS's types and texts.

Source: CloudWatch Logs API reference, the errors of each operation.
"""

from __future__ import annotations

from thawd.errors import ThawdError


class _LogsError(ThawdError):
    status = 400
    retryable = False


class InvalidParameterException(_LogsError):
    """The value of a parameter, or the combination of parameters, is not allowed (HTTP 400)."""

    type = "InvalidParameterException"


class LogsNotFoundException(_LogsError):
    """The log group, stream, filter or query does not exist (HTTP 400; the Lambda API answers 404)."""

    type = "ResourceNotFoundException"


class ResourceAlreadyExistsException(_LogsError):
    """A log group or log stream with this name exists already (HTTP 400)."""

    type = "ResourceAlreadyExistsException"


class LimitExceededException(_LogsError):
    """There are already as many filters, queries or tails as allowed (HTTP 400)."""

    type = "LimitExceededException"
    retryable = True


class TooManyTagsException(_LogsError):
    """A log group would have more than 50 tags (HTTP 400)."""

    type = "TooManyTagsException"


class DeletionProtectedException(_LogsError):
    """The log group is protected from deletion (HTTP 400)."""

    type = "ValidationException"


class UnknownOperationException(_LogsError):
    """The operation is not supported (HTTP 400)."""

    type = "UnknownOperationException"


class MalformedQueryException(_LogsError):
    """The text of a Logs Insights query cannot be understood (HTTP 400).

    Attributes:
        start: offset in the query of the first character that is wrong.
        end: offset after the last character that is wrong.
    """

    type = "MalformedQueryException"

    def __init__(self, message: str, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


def no_group() -> LogsNotFoundException:
    """The error for a log group that does not exist."""
    return LogsNotFoundException("The specified log group does not exist.")


def no_stream() -> LogsNotFoundException:
    """The error for a log stream that does not exist."""
    return LogsNotFoundException("The specified log stream does not exist.")
