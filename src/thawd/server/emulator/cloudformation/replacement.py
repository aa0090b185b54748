"""Decides whether a changed resource is replaced by a new one, or updated in place.

`resource_changes` acts on the decision, and `change_preview` shows it in change sets.

Source: CloudFormation user guide, "Understand update behaviors of stack resources".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thawd.deploy.templates.values import Unknown
from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Properties


def must_replace(kind: Kind, before: Properties, after: Properties) -> bool:
    """Return whether a change of properties requires a new resource, because the kind cannot update it in place."""
    if kind.change is None:
        return True
    names = kind.fixed if kind.free is None else (before.keys() | after.keys()) - kind.free
    return any(before.get(name) != after.get(name) for name in names)


def refuse_change(kind: Kind, before: Properties, after: Properties) -> None:
    """Check that no property changes that cannot.

    Raises:
        ResourceError: one does; the message is that of AWS.
    """
    for name, reason in kind.refused.items():
        if before.get(name) != after.get(name):
            raise ResourceError(reason)


def shown_replacement(
    type_name: str, before: Properties, after: Properties, *, changed: Sequence[str], registry: Registry
) -> str:
    """Return the field ``Replacement`` of a change set's change: "True", "False" or "Conditional".

    Args:
        type_name: the resource's type.
        before: its properties now.
        after: its properties after the change. Values that are not known before the change are `Unknown`.
        changed: names of the properties that change.
        registry: the kinds of resources.

    Returns:
        "Conditional" if the change may require a new resource, but a changed value is not known yet.
    """
    if not changed:
        return "False"
    try:
        is_replaced = must_replace(registry.find(type_name), before, after)
    except ResourceError:  # thawd has no such type: the update will fail, and its error says why
        return "True"
    if not is_replaced:
        return "False"
    return "Conditional" if any(_is_unknown(after.get(name)) for name in changed) else "True"


def _is_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_unknown, value.values()))
    return any(map(_is_unknown, value)) if isinstance(value, list) else isinstance(value, Unknown)
