"""Classes for a trial: what `thawd.server.emulator.state` reads once to see whether it can be read, and then lets go.

moto keeps every instance of its models for ever (`moto.core.common_models.BaseModel`), and what some models do at their
end concerns the backends in use: an EC2 instance gives its addresses back. So a trial makes instances of subclasses
that do neither.
"""

from __future__ import annotations

import functools
from typing import Any


class _NoNote(list[Any]):
    """Where moto notes the instances of a class, for a class of which none is to be noted."""

    def append(self, instance: Any) -> None:
        """Forget it."""


@functools.cache
def passing(cls: type) -> type:
    """What to make in place of a model of moto's, so that it goes without a trace; other classes as they are."""
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
