"""What a kind of resource is: the functions that make, change and delete resources of one type."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws import Aws
from thawd.server.emulator.cloudformation.records import Resource, Stack

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A resource that is to be made, or to be changed.

    Attributes:
        stack: the stack that it belongs to; read only.
        logical_id: its name in the template.
        kind: its type.
        name: its name, or a generated one if the template gives none.
        properties: its properties.
        former: facts of the resource before an update, when a rollback returns to it; None for other work.
    """

    stack: Stack
    logical_id: str
    kind: str
    name: str
    properties: Properties
    former: Properties | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A resource that has been made.

    Attributes:
        physical_id: what Ref returns.
        attributes: what GetAtt returns, by name.
        facts: what is needed to change and to delete it.
    """

    physical_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def _is_not_known(aws: Aws, facts: Properties) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Kind:
    """How the resources of one type are made, changed and deleted.

    Attributes:
        make: makes a resource.
        delete: deletes a resource; a resource that is gone already is no error.
        change: changes a resource to what is wanted; what it returns takes the place of what was known, and None means
            that nothing but the properties has changed. Without it, the resource is replaced.
        fixed: names of properties whose change demands another resource; with ``change`` only.
        free: names of the only properties whose change does not demand another resource; None: `fixed` says it.
        named: the property with the resource's name; empty: it has none.
        expected: facts with which `delete` finds a resource that may have been made when the work was interrupted.
        exists: whether there is a resource with these facts; asked before one is made that the template names.
        makes_again: the old resource is deleted before the new one is made, because both cannot exist at once.
    """

    make: Callable[[Aws, Wanted], Made]
    delete: Callable[[Aws, Resource], object]
    change: Callable[[Aws, Resource, Wanted], Made | None] | None = None
    fixed: frozenset[str] = frozenset()
    free: frozenset[str] | None = None
    named: str = ""
    expected: Callable[[Wanted], Properties] | None = None
    exists: Callable[[Aws, Properties], bool] = _is_not_known
    makes_again: bool = False

    def replaces(self, before: Properties, after: Properties) -> bool:
        """Whether a change of properties demands another resource."""
        if self.change is None:
            return True
        names = self.fixed if self.free is None else (before.keys() | after.keys()) - self.free
        return any(before.get(name) != after.get(name) for name in names)


@contextlib.contextmanager
def or_else(undo: Callable[[], object]) -> Iterator[None]:
    """Do `undo` if the ``with`` block raises an exception: a resource that is made by several calls is made whole."""
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):  # the first error is the reason
            undo()
        raise
