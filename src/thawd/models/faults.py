"""The errors of opening and loading models."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be opened or loaded; the message says why, and what to do if something can be done."""


class ModelNotFoundError(ModelError):
    """There is no such file or object."""


class ModelChangedError(ModelError):
    """The file or object at the address does not have the requested SHA-256, ETag or version."""


def missing(library: str, install: str) -> ModelError:
    """The error for a `library` that is not installed; `install` is the command that installs it."""
    return ModelError(f"{library} is needed but not installed for this interpreter; install it with: {install}")
