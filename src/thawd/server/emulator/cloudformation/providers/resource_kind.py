"""The kind of a resource type: the functions that make, change and delete its resources."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thawd.server.emulator.cloudformation.errors import LeftBehind
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.stack_records import Resource, Stack

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A resource as the template wants it: to be made, or to be changed to this.

    Attributes:
        stack: the stack that it belongs to; read only.
        logical_id: its name in the template.
        kind: its type.
        name: its name: from the template, else generated.
        properties: its properties.
        former: if a rollback returns to the state before an update, the facts of that state; otherwise None.
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
        physical_id: the value of Ref.
        attributes: the values of Fn::GetAtt, by name.
        facts: values with which the resource can be found, to change or delete it.
        secrets: texts that events must not show.
    """

    physical_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()


def _never_exists(aws: Aws, facts: Properties) -> bool:
    return False


def _is_never_occupied(aws: Aws, wanted: Wanted, before: Properties) -> None:
    return None


def _differs_by_properties(resource: Resource) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Kind:
    """How the resources of one type are made, changed and deleted.

    Attributes:
        make: makes a resource.
        delete: deletes a resource. It raises no error if the resource no longer exists.
        change: updates a resource in place. It returns the resource as it is now, or None if only its properties have
            changed. A kind without `change` replaces its resources.
        fixed: names of the properties whose change requires a new resource. Kinds without `change` have none.
        refused: names of the properties that cannot change, each with the reason that AWS gives.
        free: if not None, these are the only properties that can change in place, and `fixed` is not used.
        named: name of the property that contains the resource's name; empty: the type has no such property.
        expected: returns facts with which `delete` finds a resource whose creation was interrupted. The resource may
            exist or not.
        exists: returns whether a resource with these facts exists. It is called before a resource is made whose name
            the template gives.
        occupied: returns why a resource cannot be where it is wanted, because another one is there that it would
            overwrite; None: nothing is there. It is called before a resource is made, and before it is updated in
            place, with the properties that it has so far.
        makes_again: whether a replacement deletes the old resource first, because both cannot exist at the same time.
        differs: returns whether a resource needs a change although its properties stay, because what they name is
            different now.
        finish: completes a change that a rollback could undo until then. It is called when the stack's update cannot
            fail any more.
    """

    make: Callable[[Aws, Wanted], Made]
    delete: Callable[[Aws, Resource], object]
    change: Callable[[Aws, Resource, Wanted], Made | None] | None = None
    fixed: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    free: frozenset[str] | None = None
    named: str = ""
    expected: Callable[[Wanted], Properties] | None = None
    exists: Callable[[Aws, Properties], bool] = _never_exists
    occupied: Callable[[Aws, Wanted, Properties], str | None] = _is_never_occupied
    makes_again: bool = False
    differs: Callable[[Resource], bool] = _differs_by_properties
    finish: Callable[[Resource], None] | None = None


@contextlib.contextmanager
def or_else(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the ``with`` block raises an exception, so that no partly made resource is left.

    For resources that are made by several calls.

    Raises:
        LeftBehind: `undo` failed, too. The message is that of the first error.
    """
    try:
        yield
    except Exception as error:
        try:
            undo()
        except Exception as second:
            raise LeftBehind(str(error)) from second
        raise
