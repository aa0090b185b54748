"""Reads times as people type them: ``10m`` for ten minutes ago, or a date and time."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|sec|min|hours?|days?|minutes?|seconds?)(?:\s+ago)?")
_OF_DAY = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


def moment(text: str) -> float:
    """Return the time that `text` names, seconds since 1970.

    Raises:
        click.UsageError: it names none.
    """
    text = text.strip()
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time() - float(ago[1]) * _UNITS[ago[2][0]]
    today = datetime.now(UTC).date().isoformat()
    try:
        named = datetime.fromisoformat(f"{today}T{text.zfill(5)}" if _OF_DAY.fullmatch(text) else text)
    except ValueError:
        raise click.UsageError(
            f"{text!r} is no time; write how long ago (30s, 10m, 2h, 3d), or a time in UTC: 14:30, 2026-11-20, "
            "2026-11-20T14:30:00Z"
        ) from None
    return (named if named.tzinfo is not None else named.replace(tzinfo=UTC)).timestamp()
