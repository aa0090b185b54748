"""Pages of a list: a marker names the last item of the page before. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from thawd.errors import InvalidParameterValueException

T = TypeVar("T")
DEFAULT_ITEMS = 50


def page(
    items: Sequence[tuple[str, T]], given: Mapping[str, Any], *, most: int = DEFAULT_ITEMS
) -> tuple[list[T], str | None]:
    """One page of `items`, and the marker for the next; None after the last.

    Args:
        items: each with a key, in the order of which they are listed.
        given: ``Marker`` and ``MaxItems`` of the request.
        most: the longest page.

    Raises:
        InvalidParameterValueException: the marker was not given out by us (400).
    """
    start = 0
    if given.get("Marker"):
        try:
            after = base64.b64decode(given["Marker"].encode(), altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raise InvalidParameterValueException("Invalid pagination token") from None
        start = next((index + 1 for index, (key, _) in enumerate(items) if key == after), -1)
        if start < 0:
            # The item has gone meanwhile: the next one in the order is where it was.
            start = next((index for index, (key, _) in enumerate(items) if key > after), len(items))
    end = start + min(given.get("MaxItems") or most, most)
    chosen = [item for _, item in items[start:end]]
    if end >= len(items):
        return chosen, None
    return chosen, base64.urlsafe_b64encode(items[end - 1][0].encode()).decode()


def with_marker(document: dict[str, Any], marker: str | None) -> dict[str, Any]:
    """`document` with ``NextMarker`` where there is another page."""
    return document if marker is None else {**document, "NextMarker": marker}
