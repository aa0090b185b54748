"""Applies the patch operations of REST APIs' definitions (``op``, ``path``, ``value``) to moto's objects.

Source: API Gateway API reference, "PatchOperation"; API Gateway developer guide, "Patch operations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Patch = Mapping[str, Any]


class PatchError(ValueError):
    """An operation cannot be applied; the message says why."""


def apply(target: Any, patches: Iterable[Patch], names: Mapping[str, tuple[str, Callable[[str], Any]]]) -> None:
    """Change attributes of `target`.

    Args:
        target: moto's object.
        patches: the operations. A path has one part for an attribute, or two for an entry of a mapping or list.
        names: for each first part of a path, the attribute and the function that converts the operation's text to the
            attribute's value.

    Raises:
        PatchError: an operation is unknown, or its path names something that cannot be changed.
    """
    for patch in patches:
        action, path = str(patch.get("op")), str(patch.get("path", ""))
        first, _, rest = path.strip("/").partition("/")
        key = rest.replace("~1", "/").replace("~0", "~")
        if action not in ("add", "replace", "remove") or first not in names:
            allowed = ", ".join(f"/{name}" for name in names)
            raise PatchError(f"Invalid patch path '{path}' specified for op '{action}'. Must be one of: [{allowed}]")
        attribute, made_from = names[first]
        text = str(patch.get("value") or "")
        try:
            value = None if action == "remove" else made_from(text)
        except ValueError as error:
            raise PatchError(f"Invalid value '{text}' specified for path '{path}'") from error
        if not key:
            setattr(target, attribute, value)
        else:
            _change_entry(target, attribute, action, key, value)


def _change_entry(target: Any, attribute: str, action: str, key: str, value: Any) -> None:
    entries = getattr(target, attribute)
    if isinstance(entries, list):
        kept = [one for one in entries if one != key]
        setattr(target, attribute, kept if action == "remove" else [*kept, key])
        return
    changed = dict(entries or {})
    if action == "remove":
        changed.pop(key, None)
    else:
        changed[key] = value
    setattr(target, attribute, changed)


def is_true(text: str) -> bool:
    """Return whether the text of a patch means true."""
    return text.lower() == "true"
