"""Matches text against a wildcard, in which ``*`` stands for any characters or none. Pure.

Each grammar decides how to write a star: event patterns escape one with a backslash, and log filters treat several
stars as one. Both pass the pieces between the stars. Three other stars are not matched here: S3's event names may end
with one (`thawd.resources.Notification`), CORS allows one behind ``://`` or alone (`thawd.gateway.cors.allows`), and
the ``*`` of an ETag or a principal is a whole value.
"""

from __future__ import annotations

from collections.abc import Sequence


def is_like(text: str, pieces: Sequence[str]) -> bool:
    """Whether `text` consists of `pieces` in order, with any text between them.

    Each piece is searched once, from the end of the piece before it, so that no pattern makes matching expensive.

    Args:
        text: the text to match.
        pieces: texts between the stars, one more than stars; a pattern without a star has one piece, the whole text.
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
