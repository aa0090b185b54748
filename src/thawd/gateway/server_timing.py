"""The header ``Server-Timing`` on answers to requests with ``X-Thawd-Timing``: where an invocation spent its time.

Source: W3C, "Server Timing": metrics by name, each with a duration in milliseconds and a description.
"""

from __future__ import annotations

from thawd.gateway.http import Scope, header
from thawd.invocation import Result

ASKED_BY = b"x-thawd-timing"


def timing(scope: Scope, result: Result) -> list[tuple[bytes, bytes]]:
    """A list with the header ``Server-Timing``; an empty list if the request does not ask for this header.

    The header has up to three metrics. ``start`` describes how the environment was started (`StartKind`); its duration
    is the time from creating the process until the environment was ready. ``prepare`` is the part of that time which
    the process itself spent on init, fork or restore. ``handler`` is the time in the handler. If the environment
    existed already, ``start`` has no duration and ``prepare`` is missing.
    """
    if header(scope, ASKED_BY) is None:
        return []
    metrics = f"start;desc={result.start_kind.value}"
    if result.init_ms is not None:
        metrics += f";dur={result.init_ms:.3f}, prepare;dur={result.prepare_ms:.3f}"
    return [(b"server-timing", f"{metrics}, handler;dur={result.duration_ms:.3f}".encode())]
