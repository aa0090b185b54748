"""Parses and makes trace headers: X-Ray's ``X-Amzn-Trace-Id``, and W3C's ``traceparent``. No side effects.

Inside thawd, a trace header is always one of X-Ray, because queues store it and functions read it. A trace id has the
same 128 bits in both forms: ``Root=1-5759e988-bd862e3fe1be46a994272793`` is ``5759e988bd862e3fe1be46a994272793``.

Source: AWS X-Ray developer guide, "Tracing header"; W3C, Trace Context, "traceparent Header".
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FIELDS = ("Root=", "Parent=", "Sampled=")
_ROOT = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_PARENT = re.compile(r"[0-9a-f]{16}")
# A later version may append fields; version ff is invalid, and so are ids of only zeros.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{8})([0-9a-f]{24})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class TraceContext(NamedTuple):
    """What a trace header says.

    Attributes:
        trace_id: the trace, 32 hexadecimal digits.
        parent_id: the span that the request belongs to, 16 hexadecimal digits; empty: none.
        sampled: whether the sender records the trace; None: nothing was decided yet.
    """

    trace_id: str
    parent_id: str
    sampled: bool | None


def parsed(header: str | None) -> TraceContext | None:
    """Return what an X-Ray header says; None: it names no valid trace.

    A header that `thawd.invocation.new_trace_header` has made says only which trace it is.
    """
    fields = dict(field.strip().partition("=")[::2] for field in (header or "").split(";"))
    root = _ROOT.fullmatch(fields.get("Root", "").lower())
    if root is None:
        return None
    trace_id = root[1] + root[2]
    parent = fields.get("Parent", "").lower()
    sampled = {"0": False, "1": True}.get(fields.get("Sampled", ""))
    if not _PARENT.fullmatch(parent) or (parent == trace_id[16:] and not sampled):
        return TraceContext(trace_id, "", sampled if parent != trace_id[16:] else None)
    return TraceContext(trace_id, parent, sampled)


def with_parent(header: str | None, trace_id: str, parent_id: str) -> str:
    """Return the X-Ray header of a span's children, which are sampled.

    Args:
        header: the header that the span was begun with; its other fields, such as ``Lineage``, are kept.
        trace_id: the trace, 32 hexadecimal digits.
        parent_id: the span, 16 hexadecimal digits.
    """
    start = f"Root=1-{trace_id[:8]}-{trace_id[8:]};Parent={parent_id};Sampled=1"
    return start if header is None else ";".join([start, *_other_fields(header)])


def joined(header: str, traceparent: str) -> str:
    """Return one X-Ray header for a request that has a ``traceparent``.

    If both name the same trace, the parent in `traceparent` counts: an instrumented client sets it to its own span,
    while an AWS SDK copies the other from the function's environment. If they name different traces, `header` counts.

    Args:
        header: the request's X-Ray header; empty: it has none.
        traceparent: the request's ``traceparent``; it is ignored if it is invalid.
    """
    traceparent = traceparent.strip()
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or (match[5] and traceparent.startswith("00")):
        return header
    root = f"Root=1-{match[1]}-{match[2]}"
    if header and root not in header:
        return header
    own = f"{root};Parent={match[3]};Sampled={int(match[4], 16) & 1}"
    return ";".join([own, *_other_fields(header)])


def _other_fields(header: str) -> list[str]:
    """The fields of an X-Ray header, some senders of which put a space after each semicolon, but for ours."""
    fields = map(str.strip, header.split(";"))
    return [field for field in fields if field and not field.startswith(_FIELDS)]
