"""Matches texts against wildcards, in which ``*`` stands for any number of characters. No side effects.

Event patterns and log filters split a pattern at its stars themselves, because their rules differ: event patterns can
escape a star with a backslash, and log filters treat several stars side by side as one. Both pass the pieces to
`is_like`. Other modules match the star at the end of S3's event names (`thawd.resources.Notification`) and the star in
CORS origins (`thawd.gateway.cors.allows`). In ETags and principals, ``*`` is a complete value, not a wildcard.
"""

from __future__ import annotations

from collections.abc import Sequence


def is_like(text: str, pieces: Sequence[str]) -> bool:
    """Return whether `text` consists of `pieces` in order, with any text between them.

    Each piece is searched only once, from the end of the previous piece, so that no pattern makes matching slow.

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
