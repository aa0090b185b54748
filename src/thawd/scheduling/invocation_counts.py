"""Counts invocations for the metrics of functions."""

from __future__ import annotations

from thawd.errors import TooManyRequestsException
from thawd.invocation import Invocation, Result
from thawd.telemetry.metrics import FunctionMetrics, Metrics


def begun(metrics: FunctionMetrics, in_flight: int, of_all: Metrics, all_in_flight: int) -> None:
    """An invocation begins to wait or to run.

    Args:
        metrics: metrics of its function.
        in_flight: how many invocations of the function wait or run now.
        of_all: metrics of all functions.
        all_in_flight: how many invocations of all functions wait or run now.
    """
    metrics.peak = max(metrics.peak, in_flight)
    of_all.peak = max(of_all.peak, all_in_flight)


def refused(metrics: FunctionMetrics, invocation: Invocation, error: BaseException) -> None:
    """An invocation has ended with an error instead of a result. It counts as throttled if a limit refused it."""
    if isinstance(error, TooManyRequestsException):
        metrics.throttles += 1
        metrics.cell(invocation.qualifier, "").throttles += 1


def ended(metrics: FunctionMetrics, invocation: Invocation, result: Result, elapsed_ms: float) -> None:
    """An invocation has ended.

    Args:
        metrics: metrics of its function.
        invocation: the invocation.
        result: its result.
        elapsed_ms: time from the request to the answer, milliseconds.
    """
    cell = metrics.cell(invocation.qualifier, result.executed_version)
    cell.durations.add(result.duration_ms)
    cell.errors += result.function_error is not None
    metrics.count(result, elapsed_ms, invocation.trace_id)
