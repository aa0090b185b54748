"""Texts with stars in them: ``*`` stands for any characters, also none. Pure.

How a pattern spells its stars is its own grammar's business: event patterns escape a star by a backslash, filter
patterns of logs take several stars for one. Both come here as the pieces between the stars. Three other stars do not:
S3's event names end with one (`thawd.resources.Notification`), CORS has one only behind ``://`` or alone
(`thawd.gateway.cors.allows`), and the ``*`` of an ETag or a principal is a whole value.
"""

from __future__ import annotations

from collections.abc import Sequence


def is_like(text: str, pieces: Sequence[str]) -> bool:
    """Whether `text` consists of `pieces` in this order, with anything between them.

    Each piece is sought once, from where the one before it ends, so that no pattern makes a text expensive.

    Args:
        text: what is looked at.
        pieces: what stands between the stars, one more than there are stars; without a star the one piece is the text.
    """
    if len(pieces) == 1:
        return text == pieces[0]
    first, *between, last = pieces
    at, end = len(first), len(text) - len(last)
    if at > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for piece in between:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
