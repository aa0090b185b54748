"""The self-test of an image: a copy gets the priming event, and its answer is compared with that of the original."""

from __future__ import annotations

import time

from thawd.environments.environment import Environment
from thawd.environments.starts.thawable import ThawFailedError
from thawd.invocation import Invocation
from thawd.wire import frames


async def prime(environment: Environment) -> bytes:
    """Send the priming event to a copy; returns the answer, empty if the function has no such event.

    Raises:
        ThawFailedError: the event failed in the copy.
    """
    function = environment.version.function
    if function.prime is None:
        return b""
    invocation = Invocation(function.name, function.prime, queue_deadline=time.monotonic() + function.timeout_s)
    result = await environment.invoke(invocation, init_ms=None)
    if result.function_error is not None:
        answer = result.payload[:500].decode(errors="replace")
        raise ThawFailedError(f"{frames.PRIMING_FAILED} in a copy: {answer}")
    return result.payload


def difference(expected: bytes, found: bytes) -> str:
    """Describes where two answers begin to differ, with excerpts."""
    at = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), len(expected))
    begin = max(0, at - 20)
    excerpts = (text[begin : begin + 60].decode(errors="replace") for text in (expected, found))
    return " and ".join(f"…{excerpt}…" for excerpt in excerpts) + f", from byte {at} on"
