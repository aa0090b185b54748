"""Divides lists into pages; a marker identifies the last item of the previous page. No side effects."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from thawd.errors import InvalidParameterValueException

T = TypeVar("T")
DEFAULT_ITEMS = 50


def page(
    items: Sequence[tuple[str, T]], parameters: Mapping[str, Any], *, most: int = DEFAULT_ITEMS
) -> tuple[list[T], str | None]:
    """Return one page of `items`, and the marker for the next page; None: there is no next page.

    Args:
        items: pairs of key and item, in the order of their keys.
        parameters: ``Marker`` and ``MaxItems`` of the request.
        most: highest number of items on a page.

    Raises:
        InvalidParameterValueException: the marker was not issued by thawd (400).
    """
    start = 0
    if parameters.get("Marker"):
        try:
            after = base64.b64decode(parameters["Marker"].encode(), altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raise InvalidParameterValueException("Invalid pagination token") from None
        start = next((index + 1 for index, (key, _) in enumerate(items) if key == after), -1)
        if start < 0:
            # The item of the marker was deleted in the meantime: the page begins with the next key in order.
            start = next((index for index, (key, _) in enumerate(items) if key > after), len(items))
    end = start + min(parameters.get("MaxItems") or most, most)
    chosen = [item for _, item in items[start:end]]
    if end >= len(items):
        return chosen, None
    return chosen, base64.urlsafe_b64encode(items[end - 1][0].encode()).decode()


def with_marker(document: dict[str, Any], marker: str | None) -> dict[str, Any]:
    """Add ``NextMarker`` to `document` if there is another page."""
    return document if marker is None else {**document, "NextMarker": marker}
