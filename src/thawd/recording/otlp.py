"""Encodes spans as a request of the OpenTelemetry protocol. It needs only a few messages. No side effects.

Source: OpenTelemetry protocol, ``trace_service.proto``, ``trace.proto``, ``resource.proto``, ``common.proto``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import metadata

from thawd.recording.spans import Span
from thawd.telemetry.protobuf_fields import double, fixed64, integer, message, text

_ERROR = 2
_UINT64 = (1 << 64) - 1
# Longer texts are rarely the same twice.
_LONGEST_CACHED = 100


def span_fields(span: Span) -> bytes:
    """Return a span, encoded as a field of the message ``ScopeSpans``."""
    fields = [
        message(1, bytes.fromhex(span.trace_id)),
        message(2, bytes.fromhex(span.span_id)),
        message(4, bytes.fromhex(span.parent_id)) if span.parent_id else b"",
        _name_and_kind(span.name, span.kind),
        fixed64(7, int(span.began_at * 1e9)),
        fixed64(8, max(int(span.began_at * 1e9), int(span.ended_at * 1e9))),
        *(message(9, _attribute(name, value)) for name, value in span.attributes.items()),
    ]
    if span.failed:
        fields.append(message(15, integer(3, _ERROR)))
    return message(2, b"".join(fields))


def request(spans: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the body of a request that sends spans.

    Args:
        spans: each span's function, and the span encoded by `span_fields`.
    """
    by_function: dict[str, list[bytes]] = {}
    for function, encoded in spans:
        by_function.setdefault(function, [_scope()]).append(encoded)
    return b"".join(
        message(1, message(1, _resource(function)) + message(2, b"".join(parts)))
        for function, parts in by_function.items()
    )


@functools.lru_cache(4096)
def _name_and_kind(name: str, kind: int) -> bytes:
    return text(5, name) + integer(6, kind)


def _attribute(name: str, value: str | int | float | bool) -> bytes:
    if isinstance(value, str) and len(value) > _LONGEST_CACHED:
        return text(1, name) + message(2, text(1, value))
    return _short_attribute(name, value)


@functools.lru_cache(4096, typed=True)
def _short_attribute(name: str, value: str | int | float | bool) -> bytes:
    if isinstance(value, bool):
        content = integer(2, int(value))
    elif isinstance(value, int):
        content = integer(3, value & _UINT64)  # a negative number is encoded by its two's complement
    elif isinstance(value, float):
        content = double(4, value)
    else:
        content = text(1, value)
    return text(1, name) + message(2, content)


@functools.lru_cache(4096)
def _resource(function: str) -> bytes:
    return b"".join(message(1, _attribute(name, function)) for name in ("service.name", "faas.name"))


@functools.cache
def _scope() -> bytes:
    return message(1, text(1, "thawd") + text(2, metadata.version("thawd")))
