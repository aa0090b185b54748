"""Says which types of resources stacks can have here, without an emulator."""

from __future__ import annotations

import contextlib
import functools

from thawd.deploy.projects.stacks import ProjectError
from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry


@functools.cache
def _registry() -> Registry:
    return Registry(contextlib.nullcontext)


def missing_without(kind: str) -> str | None:
    """Return what a stack does not do because resources of a type are only recorded; None if nothing is missing.

    Raises:
        ProjectError: a stack with such a resource fails; the message says why.
        ModuleNotFoundError: moto is not installed.
    """
    registry = _registry()
    try:
        registry.find(kind)
    except ResourceError as error:
        raise ProjectError(str(error)) from error
    return registry.missing(kind) or None
