"""Which ended invocations are reported for a record: all failures, and of what a busy function does often, a sample."""

from __future__ import annotations

import time

import pytest

from thawd.errors import TooManyRequestsException
from thawd.invocation import Invocation, Result
from thawd.scheduling.ended_invocations import EndedInvocation, Reporting
from thawd.streaming import HTTP_RESPONSE, SEPARATOR
from thawd.telemetry.metrics import FunctionMetrics
from thawd.telemetry.sampling import Sampler
from thawd.wire.response_stream import ResponseStream

pytestmark = pytest.mark.in_memory


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that moves only when a test sets it."""
    now_s = [1000.0]
    monkeypatch.setattr("thawd.scheduling.ended_invocations.time.monotonic", lambda: now_s[0])
    return now_s


def test_of_a_busy_function_a_sample_of_successes_and_all_failures_are_reported(now_s: list[float]) -> None:
    seen: list[EndedInvocation] = []
    metrics = FunctionMetrics()
    reporting = Reporting(seen.append, per_s=10)
    for n in range(10_000):
        now_s[0] += 0.001
        result = Result(b"{}", function_error="Unhandled" if n % 1000 == 999 else None)
        reporting.ended(metrics, Invocation("f", b"", 0.0), result, (now_s[0] - 0.001, now_s[0]))
    failures = [each for each in seen if each.result is not None and each.result.function_error]
    assert [each.stands_for for each in failures] == [1] * 10, "the successes between them are none of theirs"
    assert 100 <= len(seen) - 10 <= 130
    assert sum(each.stands_for for each in seen) + (metrics.sampler or Sampler(1)).skipped == 10_000


def test_refused_requests_are_sampled_and_a_record_says_for_how_many_it_stands(now_s: list[float]) -> None:
    seen: list[EndedInvocation] = []
    metrics = FunctionMetrics()
    reporting = Reporting(seen.append, per_s=10)
    throttled = TooManyRequestsException("Rate Exceeded.", reason="x")
    for _ in range(5000):
        now_s[0] += 0.001
        reporting.refused(metrics, Invocation("f", b"", 0.0), throttled, now_s[0])
    assert {each.outcome for each in seen} == {"refused"} and 50 <= len(seen) <= 80
    assert sum(each.stands_for for each in seen) + (metrics.refusals or Sampler(1)).skipped == 5000


def test_of_a_busy_function_all_answers_with_a_servers_error_are_reported() -> None:
    seen: list[EndedInvocation] = []
    metrics = FunctionMetrics()
    reporting = Reporting(seen.append, per_s=1)
    now_s = time.monotonic() - 1000  # before the next success is recorded

    def add(result: Result, *parts: bytes) -> None:
        invocation = Invocation("f", b"", 0.0)
        if parts:
            invocation.stream = ResponseStream()
            for part in parts:
                invocation.stream.put(HTTP_RESPONSE, part)
        reporting.ended(metrics, invocation, result, (now_s, now_s))

    add(Result(b"{}"))
    add(Result(b'{"statusCode": 404}'))
    assert not seen
    add(Result(b'{"headers": {}, "statusCode": "503"}'))
    add(Result(b'{"statusCode": 500}' + SEPARATOR + b"body", content_type=HTTP_RESPONSE))
    add(Result(b"", content_type=HTTP_RESPONSE), b'{"statusCode": 500}' + SEPARATOR, b"body")
    assert len(seen) == 3
