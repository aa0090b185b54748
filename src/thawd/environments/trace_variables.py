"""Environment variables by which SDKs in functions find out where to send spans and segments. No side effects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from thawd.resources import Function

_OTLP = "OTEL_EXPORTER_OTLP_"
_SERVICE = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")


class TraceTargets(NamedTuple):
    """Where functions send what they trace.

    Attributes:
        collector: the collector's URL, to which ``/v1/traces`` is appended; None: there is none.
        segments: address that receives segments of X-Ray, such as ``127.0.0.1:9000``; None: no address does.
    """

    collector: str | None
    segments: str | None


TargetsOf = Callable[[Function], TraceTargets | None]
"""Returns where a function sends what it traces; None: nothing of it is traced."""


def trace_variables(targets: TraceTargets, *, function: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables.

    Args:
        targets: where functions send what they trace.
        function: the function's name.
        own: the function's own variables. They override these, and a function that chooses a collector or a service by
            one variable gets none of the others that would override that choice.

    Source: AWS Lambda developer guide, "Defined runtime environment variables"; OpenTelemetry specification,
    "OpenTelemetry Protocol Exporter" and "Environment Variable Specification".
    """
    found: dict[str, str] = {}
    if targets.segments is not None:
        found["AWS_XRAY_DAEMON_ADDRESS"] = sys.intern(targets.segments)
        found["AWS_XRAY_CONTEXT_MISSING"] = "LOG_ERROR"
    if targets.collector is None:
        return {name: value for name, value in found.items() if name not in own}
    if not any(name.startswith(_OTLP) for name in own):
        found[f"{_OTLP}TRACES_ENDPOINT"] = sys.intern(f"{targets.collector.rstrip('/')}/v1/traces")
        found[f"{_OTLP}TRACES_PROTOCOL"] = "http/protobuf"
    if not any(name in own for name in _SERVICE):
        found[_SERVICE[0]] = function
    return {name: value for name, value in found.items() if name not in own}
