"""The header ``Server-Timing`` on answers to requests with ``X-Thawd-Timing``: where an invocation spent its time.

Source: W3C, "Server Timing": metrics by name, each with a duration in milliseconds and a description.
"""

from __future__ import annotations

from thawd.gateway.http import Scope, header
from thawd.invocation import Result

ASKED_BY = b"x-thawd-timing"


def timing(scope: Scope, result: Result) -> list[tuple[bytes, bytes]]:
    """The header in a list; an empty list when the request does not ask for it.

    The description of ``start`` is how the environment was started (`StartKind`). Unless the environment was warm, the
    duration of ``start`` is the time from the spawn until the environment was ready, and ``prepare`` is the part of
    that time spent in init, fork or restore inside the process. ``handler`` is the time in the handler.
    """
    if header(scope, ASKED_BY) is None:
        return []
    metrics = f"start;desc={result.start_kind.value}"
    if result.init_ms is not None:
        metrics += f";dur={result.init_ms:.3f}, prepare;dur={result.prepare_ms:.3f}"
    return [(b"server-timing", f"{metrics}, handler;dur={result.duration_ms:.3f}".encode())]
