"""Makes classes for a trial, in which `thawd.server.emulator.state` loads a saved state only to see whether it loads.

moto's models are classes for resources such as EC2 instances. moto keeps every instance of them in a list, so that it
is
never freed (`moto.core.common_models.BaseModel`). And some models change the backends in use when an instance is freed:
an EC2 instance releases its addresses. So a trial uses subclasses that do neither.
"""

from __future__ import annotations

import functools
from typing import Any


class _NoNote(list[Any]):
    """Replaces moto's list of a class's instances, and does not keep the instances."""

    def append(self, instance: Any) -> None:
        """Ignore the instance."""


@functools.cache
def passing(cls: type) -> type:
    """A subclass of a moto model; its instances have no effect when they are freed. Other classes are unchanged."""
    from moto.core.common_models import BaseModel

    if not issubclass(cls, BaseModel) or cls is BaseModel:
        return cls
    fields = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__del__": lambda self: None}
    make: Any = type(cls)
    try:
        found: Any = make(cls.__name__, (cls,), fields)
    except TypeError:  # the class does not allow subclasses
        return cls
    found.instances_tracked = _NoNote()
    subclass: type = found
    return subclass
