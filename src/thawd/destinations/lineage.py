"""Counts how often a chain of invocations has invoked each function, so that a loop can be stopped.

The counts are in the ``Lineage`` field of the trace header, as on Lambda. So they are stored with queued events, and
an AWS SDK in a handler passes them on with its requests. The functions of this module have no side effects.

Source: AWS Lambda developer guide, "Lambda recursive loop detection": a chain is stopped when a function has been
invoked in it about 16 times.
"""

from __future__ import annotations

import re
import zlib

from thawd.invocation import new_trace_header

MAX_INVOCATIONS = 16
"""Most invocations of one function in one chain."""

# The largest count, and the largest length of a chain, that is written; greater numbers become this one.
_MOST = 32_767
_FIELD = re.compile(r"(\d{1,5}):([0-9a-f]{8}:\d{1,5}(?:\|[0-9a-f]{8}:\d{1,5})*)")


def advance(header: str | None, *, source: str, target: str) -> tuple[str, int]:
    """Return the trace header for an invocation that another invocation causes.

    Args:
        header: trace header of the causing invocation; None: it had none.
        source: name of the function that ran in the causing invocation.
        target: name of the function to invoke.

    Returns:
        The trace header, and how often the chain has invoked `target`, this invocation included.
    """
    fields = [field for field in (header or new_trace_header()).split(";") if field]
    found = next((field for field in fields if field.startswith("Lineage=")), "")
    length, counts = _parse(found.removeprefix("Lineage="))
    source_hash, target_hash = _hash(source), _hash(target)
    counts.setdefault(source_hash, 1)  # counts the invocation that began the chain
    counts[target_hash] = min(_MOST, counts.pop(target_hash, 0) + 1)
    lineage = "|".join(f"{name}:{count}" for name, count in counts.items())
    kept = [field for field in fields if not field.startswith("Lineage=")]
    return ";".join([*kept, f"Lineage={min(_MOST, length + 1)}:{lineage}"]), counts[target_hash]


def _parse(text: str) -> tuple[int, dict[str, int]]:
    """Return the length of a chain and its counts, by hash of the function's name.

    Returns (0, {}) if `text` does not have the form of a ``Lineage`` field.
    """
    match = _FIELD.fullmatch(text)
    if match is None:
        return 0, {}
    pairs = (pair.split(":") for pair in match[2].split("|"))
    return int(match[1]), {name: int(count) for name, count in pairs}


def _hash(function: str) -> str:
    return f"{zlib.crc32(function.encode()):08x}"
