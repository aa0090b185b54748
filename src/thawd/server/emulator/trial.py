"""Classes for a trial: `thawd.server.emulator.state` loads a saved state once to see whether it loads, and drops it.

moto keeps every instance of its models for ever (`moto.core.common_models.BaseModel`), and some models change the
backends in use when they are deleted: an EC2 instance releases its addresses. So a trial makes instances of subclasses
that do neither.
"""

from __future__ import annotations

import functools
from typing import Any


class _NoNote(list[Any]):
    """moto's list of the instances of a class, for classes whose instances it should not keep."""

    def append(self, instance: Any) -> None:
        """Keep nothing."""


@functools.cache
def passing(cls: type) -> type:
    """A subclass of a moto model whose instances leave no trace when they are deleted; other classes unchanged."""
    from moto.core.common_models import BaseModel

    if not issubclass(cls, BaseModel) or cls is BaseModel:
        return cls
    fields = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__del__": lambda self: None}
    make: Any = type(cls)
    try:
        found: Any = make(cls.__name__, (cls,), fields)
    except TypeError:  # one that allows no subclass
        return cls
    found.instances_tracked = _NoNote()
    subclass: type = found
    return subclass
