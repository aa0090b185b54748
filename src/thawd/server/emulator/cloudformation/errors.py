"""The errors of CloudFormation's API, and of resources that cannot be made, changed or deleted."""

from __future__ import annotations

VALIDATION = "ValidationError"


class StackError(Exception):
    """A request is refused (400).

    Args:
        message: CloudFormation's words.
        code: CloudFormation's error code.

    Attributes:
        code: the error code.
        message: the words.
    """

    def __init__(self, message: str, code: str = VALIDATION) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ResourceError(Exception):
    """A resource cannot be made, changed or deleted; the message is the reason that the stack's events show."""


class LeftBehind(ResourceError):
    """A resource was made, or made in part, and could not be deleted again, so it may still exist.

    Args:
        message: the reason that the stack's events show.
        name: the name under which it is to be deleted; empty: the one that it was to get.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Interrupted(BaseException):
    """The process is about to end. Nothing more is recorded of the operation; the next start resumes it."""


def does_not_exist(name: str) -> StackError:
    """The refusal of a request about a stack that is not there."""
    return StackError(f"Stack with id {name} does not exist")
