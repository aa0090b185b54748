"""Counts how often a chain of invocations has invoked each function, so that a loop can be stopped. No side effects.

The counts are in the field ``Lineage`` of the trace header, as on Lambda: ``Lineage=LENGTH:HASH:COUNT``, with further
``|HASH:COUNT`` for further functions. COUNT is 0 in the first invocation of a function, 1 in the second. So the counts
are stored with queued events, and an AWS SDK in a handler passes them on with its requests.

Source: AWS Lambda developer guide, "Use Lambda recursive loop detection to prevent infinite loops": a chain is stopped
when a function has been invoked in it 16 times.
"""

from __future__ import annotations

import functools
import re
import zlib

from thawd.errors import RecursiveInvocationException
from thawd.invocation import new_trace_header

MAX_INVOCATIONS = 16
"""Most invocations of one function in one chain."""

# The largest count, and the largest length of a chain, that is written; greater numbers become this one.
_MOST = 32_767
_NAME = "Lineage="
_FIELD = re.compile(r"(\d{1,5}):([0-9a-f]{8}:\d{1,5}(?:\|[0-9a-f]{8}:\d{1,5})*)")


def invocations(header: str | None, function: str) -> int:
    """Return how often a chain has invoked a function.

    Args:
        header: trace header of the chain; None: it has none.
        function: name of the function.
    """
    if header is None or _NAME not in header:
        return 0
    count = _parse(header)[1].get(_hash(function))
    return 0 if count is None else count + 1


def advanced(header: str | None, function: str) -> str:
    """Return the trace header for an invocation of a function, which counts this invocation.

    Args:
        header: trace header of the request; None: it had none.
        function: name of the function.
    """
    if header is None or _NAME not in header:
        return f"{header or new_trace_header()};{_NAME}1:{_hash(function)}:0"
    length, counts = _parse(header)
    name = _hash(function)
    counts[name] = min(_MOST, counts.pop(name, -1) + 1)
    lineage = "|".join(f"{name}:{count}" for name, count in counts.items())
    kept = [field for field in header.split(";") if field and not field.startswith(_NAME)]
    return ";".join([*kept, f"{_NAME}{min(_MOST, length + 1)}:{lineage}"])


def _parse(header: str) -> tuple[int, dict[str, int]]:
    """Return the length of a chain and its counts, by hash of the function's name.

    Returns (0, {}) if `header` has no valid field ``Lineage``.
    """
    fields = (field for field in header.split(";") if field.startswith(_NAME))
    match = _FIELD.fullmatch(next(fields, "").removeprefix(_NAME))
    if match is None:
        return 0, {}
    pairs = (pair.split(":") for pair in match[2].split("|"))
    return int(match[1]), {name: int(count) for name, count in pairs}


@functools.lru_cache(4096)
def _hash(function: str) -> str:
    return f"{zlib.crc32(function.encode()):08x}"


def loop_error() -> RecursiveInvocationException:
    """Return the error with which a chain of invocations ends that has invoked a function too often; Lambda's words."""
    return RecursiveInvocationException(
        "Lambda has detected your function being invoked in a recursive loop with other Amazon Web Services "
        "resources and stopped your function's invocation."
    )
