"""The errors of opening and loading models."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be opened or loaded; the message says why, and the way out if there is one."""


class ModelNotFoundError(ModelError):
    """There is no such file or object."""


class ModelChangedError(ModelError):
    """The store's model does not match the requested SHA-256, ETag or version."""


def missing(library: str, install: str) -> ModelError:
    """The error for a `library` that is not installed; `install` is the command that installs it."""
    return ModelError(f"this needs {library}, which this interpreter does not have; install it with: {install}")
