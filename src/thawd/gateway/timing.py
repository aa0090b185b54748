"""What an answer says of how it came about, for who asks with ``X-Thawd-Timing``: the header ``Server-Timing``.

Source: W3C, "Server Timing": metrics by name, each with a duration in milliseconds and a description.
"""

from __future__ import annotations

from thawd.gateway.http import Scope, header
from thawd.invocation import Result

ASKED_BY = b"x-thawd-timing"


def timing(scope: Scope, result: Result) -> list[tuple[bytes, bytes]]:
    """The header, where the request asks for it, else none.

    ``start`` tells by its description how the environment came to be (`StartKind`) and, unless it was warm, how long
    that took from spawning it to its being ready; ``prepare`` what of this was init, fork or restore inside the
    process; ``handler`` the time in the handler.
    """
    if header(scope, ASKED_BY) is None:
        return []
    told = f"start;desc={result.start_kind.value}"
    if result.init_ms is not None:
        told += f";dur={result.init_ms:.3f}, prepare;dur={result.prepare_ms:.3f}"
    return [(b"server-timing", f"{told}, handler;dur={result.duration_ms:.3f}".encode())]
