"""Suggests the name that somebody probably meant, for messages about a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MOST_NAMED = 8


def did_you_mean(name: str, known: Collection[str], *, what: str = "functions") -> str:
    """Return the end of a message: the name that `name` resembles, else the names that exist.

    Args:
        name: what was typed.
        known: the names that exist.
        what: the plural of what the names name.
    """
    lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.55)
    if close:
        return f"did you mean {lowered[close[0]]}?"
    beginning = sorted(each for each in known if each.lower().startswith(name.lower()))
    if name and beginning:
        return f"did you mean {beginning[0]}?"
    if not known:
        return f"there are no {what}"
    shown = sorted(known)[:_MOST_NAMED]
    more = f", and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return f"{what}: {', '.join(shown)}{more}"
