"""Matches texts against patterns in which ``*`` stands for any number of characters. No side effects.

The modules for event patterns and for log filters split their patterns at the stars, and pass the pieces to `is_like`.
Their rules differ: event patterns can escape a star with a backslash, and log filters treat several stars side by side
as one. Two other modules handle stars without this module: `thawd.resources.Notification` the star at the end of S3's
event names, and `thawd.gateway.cors.allows` the star in CORS origins. In ETags and principals, ``*`` is a whole value.
"""

from __future__ import annotations

from collections.abc import Sequence


def is_like(text: str, pieces: Sequence[str]) -> bool:
    """Return whether `text` consists of `pieces` in order, with any text between them.

    Each piece is searched for only once, from the end of the previous piece, so that no pattern makes matching slow.

    Args:
        text: the text to match.
        pieces: the texts before, between and after the stars; a pattern without a star has one piece.
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
