"""Trace headers, the spans of an invocation, and the thread that sends them to a collector that may be down."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.collector import Collector
from tests.waiting import pause
from thawd.errors import TooManyRequestsException
from thawd.grammar import trace_headers
from thawd.grammar.trace_headers import TraceContext
from thawd.invocation import Invocation, Result, StartKind, new_trace_header
from thawd.recording.span_sender import SpanSender
from thawd.recording.spans import INTERNAL, Span, spans_of
from thawd.recording.tracer import Tracer
from thawd.scheduling.ended_invocations import EndedInvocation

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
ROOT = f"Root=1-{TRACE[:8]}-{TRACE[8:]}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def until(condition: Any) -> None:
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begun_s < 30
        pause(begun_s)


def test_a_traceparent_becomes_an_x_ray_header_with_the_same_128_bits() -> None:
    assert trace_headers.joined("", f"00-{TRACE}-{PARENT}-01") == f"{ROOT};Parent={PARENT};Sampled=1"
    assert trace_headers.joined("", f"00-{TRACE}-{PARENT}-00") == f"{ROOT};Parent={PARENT};Sampled=0"
    assert trace_headers.joined("", f"42-{TRACE}-{PARENT}-03-more") == f"{ROOT};Parent={PARENT};Sampled=1"


@pytest.mark.parametrize(
    "traceparent",
    [
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        "",
    ],
)
def test_an_invalid_traceparent_is_ignored(traceparent: str) -> None:
    assert trace_headers.joined("", traceparent) == ""


def test_of_two_headers_traceparent_counts_if_both_name_the_same_trace() -> None:
    same = f"{ROOT};Parent=53995c3f42cd8ad8;Sampled=1;Lineage=1:0a0a0a0a:0"
    other = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"

    assert trace_headers.joined(same, f"00-{TRACE}-{PARENT}-01") == (
        f"{ROOT};Parent={PARENT};Sampled=1;Lineage=1:0a0a0a0a:0"
    )
    assert trace_headers.joined(other, f"00-{TRACE}-{PARENT}-01") == other


@pytest.mark.parametrize(
    ("header", "context"),
    [
        (f"{ROOT};Parent={PARENT};Sampled=1", TraceContext(TRACE, PARENT, True)),
        (f"Sampled=0; Parent={PARENT}; {ROOT};Self=x", TraceContext(TRACE, PARENT, False)),
        (f"{ROOT};Parent={PARENT};Sampled=?", TraceContext(TRACE, PARENT, None)),
        (ROOT, TraceContext(TRACE, "", None)),
        (f"{ROOT};Sampled=0", TraceContext(TRACE, "", False)),
        ("Root=2-1-2;Sampled=1", None),
        (None, None),
    ],
)
def test_a_header_says_trace_parent_and_whether_the_sender_records(
    header: str | None, context: TraceContext | None
) -> None:
    assert trace_headers.parsed(header) == context


def test_a_header_that_thawd_made_has_no_parent_and_nothing_is_decided_until_a_span_is_its_parent() -> None:
    header = new_trace_header()
    context = trace_headers.parsed(header)

    assert context is not None and context.parent_id == "" and context.sampled is None
    assert trace_headers.parsed(trace_headers.with_parent(header, context.trace_id, PARENT)) == TraceContext(
        context.trace_id, PARENT, True
    )


def test_a_header_with_spaces_has_one_parent_after_a_new_span() -> None:
    spaced = f"{ROOT}; Parent=53995c3f42cd8ad8; Sampled=0; Self=x"

    assert trace_headers.with_parent(spaced, TRACE, PARENT) == f"{ROOT};Parent={PARENT};Sampled=1;Self=x"
    assert trace_headers.joined(spaced, f"00-{TRACE}-{PARENT}-01") == f"{ROOT};Parent={PARENT};Sampled=1;Self=x"


class Sent:
    """A sender that keeps what it is to send."""

    def __init__(self) -> None:
        self.invocations: list[EndedInvocation] = []

    def ended(self, ended: EndedInvocation) -> None:
        self.invocations.append(ended)

    def add(self, span: Span) -> None:
        raise AssertionError(span)


def tracer(ratio: float) -> Tracer:
    return Tracer(Sent(), ratio=ratio)  # type: ignore[arg-type]


def test_a_ratio_is_of_the_traces_that_begin_here_and_decides_by_the_trace_id_alone() -> None:
    half = tracer(0.5)
    headers = [new_trace_header() for _ in range(1000)]
    decided = [[half.begin(one := invocation(header)) == header, one.traced is None] for header in headers * 2]

    assert decided[:1000] == decided[1000:]
    assert 400 < sum(is_out for _, is_out in decided[:1000]) < 600
    assert all(is_unchanged == is_out for is_unchanged, is_out in decided)


def test_with_ratio_0_only_traces_of_senders_that_record_are_recorded() -> None:
    none, new, recorded = tracer(0), invocation(new_trace_header()), invocation(f"{ROOT};Parent={PARENT};Sampled=1")
    none.begin(new)
    none.begin(recorded)

    assert new.traced is None
    assert recorded.traced is not None and recorded.traced.parent_id == PARENT


def test_the_handlers_header_has_its_span_as_parent_and_keeps_the_chain() -> None:
    one = invocation(f"{ROOT};Parent={PARENT};Sampled=1;Lineage=1:0a0a0a0a:0")
    header = tracer(1).begin(one)

    assert one.traced is not None
    assert header == f"{ROOT};Parent={one.traced.handler_id};Sampled=1;Lineage=1:0a0a0a0a:0"


def test_an_event_that_is_throttled_has_no_span_because_it_is_tried_again() -> None:
    sent = Sent()
    traces = Tracer(sent, ratio=1)  # type: ignore[arg-type]
    for asynchronous in (True, False):
        one = invocation(new_trace_header(), asynchronous=asynchronous)
        traces.begin(one)
        traces.ended(EndedInvocation(one, None, TooManyRequestsException("later"), 10.0, 10.1, 1000.0, 1))

    assert [each.invocation.asynchronous for each in sent.invocations] == [False]


def invocation(header: str, **fields: Any) -> Invocation:
    return Invocation("f", b"{}", 0.0, trace_id=header, **fields)


def test_the_stages_of_a_thaw_follow_each_other_inside_the_invocation() -> None:
    one = invocation(f"{ROOT};Parent={PARENT};Sampled=1", arrived_s=9.99, leased_s=10.03)
    tracer(1).begin(one)
    result = Result(b"1", start_kind=StartKind.THAW, duration_ms=50, init_ms=20, prepare_ms=15, hooks_ms=5)
    ended = EndedInvocation(one, result, None, 10.0, 10.09, 1000.0, 1)

    spans = {span.name: span for span in spans_of(ended)}

    times = {
        name: (round((span.began_at - 1000) * 1000), round((span.ended_at - 1000) * 1000))
        for name, span in spans.items()
    }
    assert times == {
        "f": (-100, 0),
        "gateway": (-100, -90),
        "wait": (-90, -80),
        "start thaw": (-80, -60),
        "restore": (-75, -60),
        "after-restore hooks": (-65, -60),
        "handler": (-60, -10),
    }
    assert spans["restore"].parent_id == spans["start thaw"].span_id
    assert spans["after-restore hooks"].parent_id == spans["restore"].span_id
    assert {spans[name].parent_id for name in ("gateway", "wait", "start thaw", "handler")} == {spans["f"].span_id}
    assert {span.trace_id for span in spans.values()} == {TRACE}


def test_an_error_type_that_is_no_name_is_not_in_a_span() -> None:
    one = invocation(new_trace_header(), leased_s=10.0)
    tracer(1).begin(one)
    result = Result(b'{"errorType": "password canary", "errorMessage": "canary"}', function_error="Unhandled")

    spans = spans_of(EndedInvocation(one, result, None, 10.0, 10.1, 1000.0, 1))

    assert spans[0].failed and spans[0].attributes["error.type"] == "_OTHER"
    assert "canary" not in repr(spans)


@pytest.mark.parametrize(
    "event",
    [
        {"httpMethod": "canary" * 200, "resource": "/" + "x" * 5000},
        {"Records": [{"eventSource": "aws:s3", "s3": {"bucket": {"name": "b" * 5000}}}]},
    ],
)
def test_an_event_cannot_make_a_span_large(event: dict[str, Any]) -> None:
    one = Invocation("f", json.dumps(event).encode(), 0.0, trace_id=new_trace_header(), leased_s=10.0)
    tracer(1).begin(one)

    [first, *_] = spans_of(EndedInvocation(one, Result(b"1"), None, 10.0, 10.1, 1000.0, 1))

    assert max(len(str(value)) for value in first.attributes.values()) <= 200 and "canary" not in repr(first)


def span(name: str) -> Span:
    return Span("f", TRACE, PARENT, "", name, INTERNAL, 1000.0, 1000.5, {"n": 3, "is": True})


def test_spans_are_sent_again_after_a_refusal_for_now_and_dropped_after_one_for_good(collector: Collector) -> None:
    said: list[str] = []
    collector.answers = [503]
    sender = SpanSender(f"{collector.url}/otlp", report=said.append)
    sender.add(span("kept"))
    until(lambda: collector.bodies)
    [received] = collector.spans()
    collector.answers = [400]
    sender.add(span("refused"))
    until(lambda: sender.dropped)
    sender.close()

    assert collector.paths[0] == "/otlp/v1/traces"
    assert (received.service, received.name, received.began_ns, received.ended_ns) == (
        "f",
        "kept",
        1_000_000_000_000,
        1_000_500_000_000,
    )
    assert received.attributes == {"n": 3, "is": True}
    assert len(said) == 3 and "status 503" in said[0] and "again" in said[1] and "status 400" in said[2]


def test_what_cannot_be_encoded_does_not_end_the_thread(collector: Collector) -> None:
    said: list[str] = []
    sender = SpanSender(collector.url, report=said.append)
    for number, function in enumerate(("\ud800", "good")):
        one = Invocation(function, b"{}", 0.0, f"request-{number}", trace_id=new_trace_header(), leased_s=10.0)
        tracer(1).begin(one)
        sender.ended(EndedInvocation(one, Result(b"1"), None, 10.0, 10.1, 1000.0, 1))
    until(collector.spans)
    sender.close()

    assert {each.service for each in collector.spans()} == {"good"}
    assert len(said) == 1 and "failed inside thawd" in said[0]


def test_a_host_name_that_is_none_is_reported() -> None:
    said: list[str] = []
    sender = SpanSender(f"http://{'x' * 70}.example", report=said.append)
    sender.add(span("lost"))
    until(lambda: said)
    sender.close()

    assert "cannot be sent" in said[0]


def test_what_waits_is_sent_at_the_end(collector: Collector) -> None:
    sender = SpanSender(collector.url, report=print)
    for number in range(1000):
        sender.add(span(str(number)))
    sender.close()

    assert len(collector.spans()) == 1000


def test_a_collector_that_is_down_is_reported_once_what_waits_is_bounded_and_the_end_takes_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("thawd.recording.span_sender._BATCH_S", 600.0)  # nothing is sent before the end
    said: list[str] = []
    with socket.socket() as silent:  # it accepts connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        sender = SpanSender(f"http://127.0.0.1:{silent.getsockname()[1]}", report=said.append)
        for number in range(9000):
            sender.add(span(str(number)))
        began_s = time.monotonic()
        sender.close()
        took_s = time.monotonic() - began_s
        until(lambda: len(said) == 2)  # on a busy machine, the thread may need longer than the end waits for it

    assert sender.dropped == 9000 - 8192
    assert took_s < 10, "a second, and what a busy machine adds"
    assert sum("cannot be sent" in line for line in said) == 1
    assert "8192 spans were not sent" in said[1]
