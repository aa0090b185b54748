"""Every error the platform raises on purpose: its AWS error type, its HTTP status, and whether a retry can help.

The names of the ``*Exception`` classes are the error codes of the Lambda API, so that clients can catch them by name.
This module imports no other module of thawd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar

_PACKAGE = str(Path(__file__).parent)


class ThawdError(Exception):
    """Base class of all errors that thawd raises on purpose.

    Attributes:
        type: AWS error code, sent in the header ``x-amzn-ErrorType``.
        status: HTTP status with which the gateway answers.
        retryable: whether the same request may succeed later.
        reason: the ``Reason`` field of a throttling error, else None.
        is_typed: whether the error's document has the field ``Type``. A few of AWS's documents have none.
    """

    type: ClassVar[str] = "ServiceException"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, reason: str | None = None, is_typed: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.is_typed = is_typed


class ServiceException(ThawdError):
    """The platform failed, not the caller and not the function (HTTP 500)."""


class RequestTimeoutException(ThawdError):
    """The client sent the body of its request too slowly (HTTP 408)."""

    type = "RequestTimeoutException"
    status = 408


class NoRoomError(ServiceException):
    """The machine has no process, thread or memory left for another environment (HTTP 500)."""

    type = "ServiceException"


class ResourceNotFoundException(ThawdError):
    """The thing that the request names, for example a function, version, bucket or table, does not exist (HTTP 404)."""

    type = "ResourceNotFoundException"
    status = 404
    retryable = False


class InvalidRequestContentException(ThawdError):
    """The request body is not JSON (HTTP 400)."""

    type = "InvalidRequestContentException"
    status = 400
    retryable = False


class InvalidParameterValueException(ThawdError):
    """A value in the request is not allowed, for example a header, a table's key or item, or a zip file (HTTP 400)."""

    type = "InvalidParameterValueException"
    status = 400
    retryable = False


class ValidationException(ThawdError):
    """A parameter is missing or out of its range (HTTP 400)."""

    type = "ValidationException"
    status = 400
    retryable = False


class SerializationException(ThawdError):
    """The request is not a JSON object, or a parameter has the wrong type (HTTP 400)."""

    type = "SerializationException"
    status = 400
    retryable = False


class MethodNotAllowedException(ThawdError):
    """The path exists, but does not support this HTTP method (HTTP 405).

    Attributes:
        allowed: methods that the path supports, sent in the header ``Allow``.
    """

    type = "MethodNotAllowedException"
    status = 405
    retryable = False

    def __init__(self, message: str, *, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)


class PreconditionFailedException(ThawdError):
    """The revision id in the request is not that of the resource's current state (HTTP 412)."""

    type = "PreconditionFailedException"
    status = 412
    retryable = False


class PolicyLengthExceededException(ThawdError):
    """The permissions policy would be larger than 20 KB (HTTP 400)."""

    type = "PolicyLengthExceededException"
    status = 400
    retryable = False


class ProvisionedConcurrencyConfigNotFoundException(ThawdError):
    """The version or alias has no provisioned concurrency (HTTP 404)."""

    type = "ProvisionedConcurrencyConfigNotFoundException"
    status = 404
    retryable = False


class RequestTooLargeException(ThawdError):
    """The request body exceeds the invocation payload limit (HTTP 413)."""

    type = "RequestTooLargeException"
    status = 413
    retryable = False


class CodeSigningConfigNotFoundException(ThawdError):
    """The function's code signing configuration does not exist (HTTP 404)."""

    type = "CodeSigningConfigNotFoundException"
    status = 404
    retryable = False


class CodeVerificationFailedException(ThawdError):
    """A code signing configuration demands that code is signed, and that cannot be verified (HTTP 400)."""

    type = "CodeVerificationFailedException"
    status = 400
    retryable = False


class RequestEntityTooLargeException(ThawdError):
    """A request of the control plane is too large (HTTP 413). AWS's front end answers so, before the service does."""

    type = "RequestEntityTooLargeException"
    status = 413
    retryable = False


RATE_EXCEEDED = "Rate Exceeded."
"""Lambda's message for a reached limit; it does not say which."""
RESERVED_CONCURRENCY_REACHED = "ReservedFunctionConcurrentInvocationLimitExceeded"
"""The reason of a throttling error: the function's reserved concurrency is in use."""


class TooManyRequestsException(ThawdError):
    """A concurrency limit was reached, or too many requests are already waiting (HTTP 429)."""

    type = "TooManyRequestsException"
    status = 429


class NotMemberError(TooManyRequestsException):
    """This machine is cut off from its cluster, or is being drained, so it accepts and begins nothing (HTTP 503)."""

    type = "ServiceException"
    status = 503


class MachineAwayError(ThawdError):
    """Another machine of the cluster does not answer, or has left (HTTP 503)."""

    type = "ServiceException"
    status = 503


class RecursiveInvocationException(ThawdError):
    """A chain of invocations has come back to the same function too often (HTTP 400)."""

    type = "RecursiveInvocationException"
    status = 400
    retryable = False


class ResourceConflictException(ThawdError):
    """The resource is in a state that does not allow the operation, for example still being published (HTTP 409)."""

    type = "ResourceConflictException"
    status = 409


class ResourceInUseException(ThawdError):
    """The event source mapping is being changed; try again when the change is complete (HTTP 400)."""

    type = "ResourceInUseException"
    status = 400


class ResourceNotReadyException(ThawdError):
    """The function is inactive or could not be published; the message contains the last error (HTTP 502)."""

    type = "ResourceNotReadyException"
    status = 502


class AccessDeniedException(ThawdError):
    """The request has no valid key or signature, or its host or origin is not allowed (HTTP 403)."""

    type = "AccessDeniedException"
    status = 403
    retryable = False


class StoreError(ThawdError):
    """A durable store cannot be read or written; the message names its file or URL, and the cause (HTTP 500)."""

    type = "ServiceException"


class NothingStored(StoreError):
    """The store does not exist yet; the first write creates it. A reader can treat it as an empty store."""


class StoreFullError(StoreError):
    """The disk of a store, for example of the data folder, is full, so nothing was stored (HTTP 503)."""

    status = 503


class UnknownOutcomeError(StoreError):
    """A store did not answer, so it is unknown whether it made a change (HTTP 503). The message says what to look at.

    A repetition may make the change a second time.
    """

    status = 503
    retryable = False


class LeaseLostError(StoreError):
    """This machine no longer holds a lease that it needs, so it changed nothing (HTTP 503)."""

    status = 503


class ScarcityError(ThawdError):
    """The machine has no memory or threads left for thawd itself (HTTP 503). The message ends with the remedies."""

    status = 503
    way_out: ClassVar[str] = (
        "raise the limits of this process (`ulimit -v`, `ulimit -u`; MemoryMax and TasksMax of a service), free "
        "memory, or declare fewer buckets and tables"
    )

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; {self.way_out}")


class NoThreadError(ScarcityError):
    """The operating system refused to start another thread (HTTP 503)."""


class DestinationUnavailable(ThawdError):
    """A destination did not accept the outcome of an invocation, and may accept it later (HTTP 502)."""

    status = 502


class DestinationRefused(ThawdError):
    """A destination refuses the outcome of an invocation; sending it again will not help (HTTP 400)."""

    status = 400
    retryable = False


class EnvironmentBuildError(ThawdError):
    """A function's interpreter is missing or its requirements cannot be installed."""

    retryable = False


class ImageError(ThawdError):
    """A container image cannot be used: it is broken, hostile, missing or for another machine (HTTP 400)."""

    type = "InvalidParameterValueException"
    status = 400
    retryable = False


class RegistryError(ImageError):
    """A registry of container images refused or failed; the message names the registry and its answer (HTTP 502)."""

    type = "ServiceException"
    status = 502
    retryable = True


def unexpected(error: BaseException) -> str:
    """Describe, in one line, an error that thawd did not raise on purpose: its class, message and place in the code.

    Args:
        error: the error as caught; for an exception group, its first error is described.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = " ".join(str(error).split())
    described = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"something failed inside thawd: {described}{_place(error.__traceback__)}"


def _place(traceback: TracebackType | None) -> str:
    """The innermost line of thawd's own code in a traceback, in parentheses; empty when there is none."""
    place = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            place = f" ({file[len(_PACKAGE) + 1 :]}, line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return place


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration file.

    Attributes:
        file: path of the file, as given by the user.
        key: dotted key path, for example ``functions.classify.memory_mb``; empty for the file as a whole.
        found: the value in the file, in words, for example ``96``.
        allowed: the values that are allowed, in words, for example ``a whole number from 128 to 10240``.
    """

    file: str
    key: str
    found: str
    allowed: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: found {self.found}; allowed: {self.allowed}"


class ConfigurationError(ThawdError):
    """The configuration cannot be used; ``problems`` holds every mistake found, not only the first."""

    retryable = False

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
