"""What may go wrong with a model, for callers to tell apart."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be had or loaded; the message says why, and the way out where there is one."""


class ModelNotFoundError(ModelError):
    """There is no such file or object."""


class ModelChangedError(ModelError):
    """What the store has is not what was asked for by SHA-256, ETag or version."""


def missing(library: str, install: str) -> ModelError:
    """The error for a `library` that is not installed, with what installs it."""
    return ModelError(f"this needs {library}, which this interpreter does not have; install it with: {install}")
