"""Makes classes for a trial, in which `thawd.server.emulator.state` loads a saved state only to see whether it loads.

moto's models are classes for resources such as EC2 instances. Objects that a trial has loaded must be freed without
traces, but moto's models prevent this in two ways. `moto.core.common_models.BaseModel` puts each object of a model into
a list, so that the object is never freed. And some models change the backends in use when an object is freed: an EC2
instance releases its addresses. So a trial uses subclasses of the models that do neither.
"""

from __future__ import annotations

import functools
from typing import Any


class _NoNote(list[Any]):
    """Replaces the list into which moto puts all instances of a model. It does not keep what is appended."""

    def append(self, instance: Any) -> None:
        """Ignore the instance."""


@functools.cache
def passing(cls: type) -> type:
    """Make a subclass of a moto model whose instances are freed without effect. Another class is returned unchanged."""
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
