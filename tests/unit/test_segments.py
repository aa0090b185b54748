"""Segments of X-Ray from functions: what enters a trace, what does not, redaction, and the limits on what is kept."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.collector import Collector
from tests.waiting import pause
from thawd.environments.trace_variables import TraceTargets, trace_variables
from thawd.invocation import Invocation, TracedInvocation
from thawd.recording import open_traces, otlp, segment_joining, segment_receiver, span_sender
from thawd.recording.open_traces import OpenTraces
from thawd.recording.redaction import MARK, Redactor
from thawd.recording.segment_joining import SegmentJoiner, Source
from thawd.recording.segment_receiver import SegmentReceiver
from thawd.recording.segments import TOO_LARGE
from thawd.recording.span_sender import SpanSender
from thawd.recording.spans import CLIENT, INTERNAL, Span

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ROOT = f"1-{TRACE[:8]}-{TRACE[8:]}"
HANDLER = "00f067aa0ba902b7"
NOW = 1_700_000_000.0
HEADER = b'{"format":"json","version":1}\n'


def identifier(number: int) -> str:
    return f"{number:016x}"


def document(number: int, parent: str = HANDLER, **changes: Any) -> dict[str, Any]:
    return {
        "id": identifier(number),
        "name": f"s{number}",
        "start_time": NOW,
        "end_time": NOW + 1,
        "trace_id": ROOT,
        "parent_id": parent,
        "type": "subsegment",
        **changes,
    }


def datagram(number: int, parent: str = HANDLER, **changes: Any) -> bytes:
    return HEADER + json.dumps(document(number, parent, **changes)).encode()


class Intake:
    """A joiner with one traced invocation of the function ``f``.

    Attributes:
        spans: the accepted spans.
        has_room: whether further spans are accepted.
    """

    def __init__(self, event: bytes = b"{}") -> None:
        self.spans: list[Span] = []
        self.has_room = True
        self.open = OpenTraces()
        self.joiner = SegmentJoiner(self.open, Redactor(["*password*", "token"], secrets=["the-key"]), self._accept)
        self.begin(HANDLER, event)

    def begin(self, handler: str, event: bytes = b"{}", *, function: str = "f", trace: str = TRACE) -> Invocation:
        invocation = Invocation(function, event, 0.0)
        invocation.traced = TracedInvocation(trace, "", identifier(1 << 60), handler, "")
        self.open.begin(invocation, invocation.traced, NOW)
        return invocation

    def end(self, invocation: Invocation) -> None:
        assert invocation.traced is not None
        self.open.ended(invocation, invocation.traced, times=(NOW, NOW + 1), environment="e")

    def take(self, *datagrams: bytes) -> list[Span]:
        for each in datagrams:
            self.joiner.take(each, NOW + 2)
        return self.spans

    def _accept(self, span: Span, source: Source) -> bool:
        if self.has_room:
            self.spans.append(span)
        return self.has_room


def test_a_subsegment_becomes_a_span_with_its_attributes() -> None:
    [span] = Intake().take(
        datagram(
            1,
            name="dynamodb",
            namespace="aws",
            fault=True,
            http={
                "request": {"method": "POST", "url": "https://me:secret@host:8000/path?signature=secret#x"},
                "response": {"status": 400},
            },
            aws={"operation": "PutItem", "region": "us-east-1", "table_name": "orders", "other": 1},
            annotations={
                "Good": True,
                "Half": 0.5,
                "Low": -2,
                "Text": "text",
                "bad key": 1,
                "List": [],
                "Big": 1 << 70,
            },
            metadata={"default": {"a": [1, None]}},
            cause={"exceptions": [{"type": "Refused", "message": "no"}]},
        )
    )

    assert (span.function, span.trace_id, span.span_id, span.parent_id) == ("f", TRACE, identifier(1), HANDLER)
    assert (span.name, span.kind, span.failed, span.began_at, span.ended_at) == ("dynamodb", CLIENT, True, NOW, NOW + 1)
    assert span.attributes == {
        "rpc.system": "aws-api",
        "rpc.method": "PutItem",
        "cloud.region": "us-east-1",
        "db.collection.name": "orders",
        "http.request.method": "POST",
        "url.full": "https://host:8000/path",
        "http.response.status_code": 400,
        "error.type": "Refused",
        "exception.message": "no",
        "aws.xray.annotation.Good": True,
        "aws.xray.annotation.Half": 0.5,
        "aws.xray.annotation.Low": -2,
        "aws.xray.annotation.Text": "text",
        "aws.xray.metadata.default": '{"a":[1,null]}',
    }


@pytest.mark.parametrize("value", [-1, -(1 << 63), (1 << 63) - 1, 0.25, -1e300, True, "", "text"])
def test_numbers_and_texts_of_annotations_are_decoded_by_others_as_they_were(value: Any) -> None:
    [span] = Intake().take(datagram(1, annotations={"a": value}))
    request = ExportTraceServiceRequest.FromString(otlp.request([("f", otlp.span_fields(span))]))
    [found] = request.resource_spans[0].scope_spans[0].spans[0].attributes

    assert getattr(found.value, found.value.WhichOneof("value")) == value


def test_subsegments_inside_and_sent_before_their_parents_have_their_parents() -> None:
    intake = Intake()
    inner = {key: value for key, value in document(4).items() if key not in ("trace_id", "parent_id")}

    assert intake.take(datagram(3, identifier(2)), datagram(2, identifier(1))) == [], "their parents are unknown yet"
    spans = {span.name: span for span in intake.take(datagram(1, subsegments=[inner]), datagram(5, identifier(4)))}

    parents = {name: span.parent_id for name, span in spans.items()}
    assert parents == {
        "s1": HANDLER,
        "s2": identifier(1),
        "s3": identifier(2),
        "s4": identifier(1),
        "s5": identifier(4),
    }
    assert all(span.kind == INTERNAL for span in spans.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"trace_id": f"1-{'1' * 8}-{'2' * 24}"},
        {"trace_id": TRACE},
        {"trace_id": None},
        {"parent_id": identifier(77)},
        {"parent_id": HANDLER.upper()},
        {"parent_id": None},
        {"id": HANDLER},
        {"id": "0" * 16},
        {"id": "x" * 16},
        {"id": 1},
        {"name": None},
        {"start_time": "now"},
        {"start_time": NOW - 100},
        {"end_time": NOW + 1000},
        {"end_time": NOW - 1},
        {"end_time": 1e300},
        {"end_time": None},
        {"in_progress": True},
        {"subsegments": {}},
    ],
)
def test_a_document_of_another_trace_or_with_impossible_values_is_ignored(changes: dict[str, Any]) -> None:
    assert Intake().take(datagram(1, **changes)) == []


def test_ids_are_used_once_and_only_by_those_who_know_a_handlers_span() -> None:
    intake = Intake()
    other = identifier(99)
    intake.begin(other, function="g", trace="5" * 32)

    spans = intake.take(datagram(1), datagram(1, name="twice"), datagram(2, other), datagram(3, identifier(1)))

    assert [(span.function, span.name) for span in spans] == [("f", "s1"), ("f", "s3")]


def test_no_bytes_harm_the_joiner() -> None:
    intake = Intake()
    generator = random.Random(7)
    good = datagram(1, annotations={"a": "b"}, metadata={"n": {"k": [1, 2.5, "x"]}}, subsegments=[document(2)])
    hostile = [
        b"",
        b"\n",
        HEADER,
        HEADER + b"[" * 60_000,
        HEADER + b'{"id":' * 10_000,
        HEADER + b'{"metadata":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
        good.replace(b"s1", b"\xff\xfe"),
        good.replace(b"s1", b"\\ud800"),
        good.replace(HEADER, b'{"format":"json","version":2}\n'),
        good.replace(b"1700000000.0", b"1e999"),
        good.replace(b'"a": "b"', b'"a": ' + b"9" * 5000),
        good.replace(b'"n": {', b'"n": {"password": ' + b"[" * 500 + b"]" * 500 + b", "),
    ]
    for _ in range(2000):
        damaged = bytearray(good)
        for _ in range(generator.randrange(1, 6)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        hostile.append(bytes(damaged[: generator.randrange(len(damaged) + 1)]))
    intake.take(*hostile)

    for span in intake.spans:
        assert span.trace_id == TRACE
        otlp.span_fields(span)


def test_values_are_redacted_by_name_and_where_the_event_had_them() -> None:
    intake = Intake(event=json.dumps({"password": "canary-1", "body": json.dumps({"token": "canary-2"})}).encode())
    [span] = intake.take(
        datagram(
            1,
            name="GET canary-1",
            http={"request": {"method": "GET", "url": "http://host/canary-2"}},
            annotations={"token": "canary-3", "Note": "a canary-3", "Key": "the-key"},
            metadata={"n": {"db_password": "canary-4", "said": '{"token": "canary-5"}', "again": ["canary-1"]}},
            cause={"exceptions": [{"type": "E", "message": "token=canary-6 canary-4"}]},
        )
    )

    assert "canary" not in str(span) and "the-key" not in str(span)
    assert span.name == f"GET {MARK}" and span.attributes["aws.xray.annotation.token"] == MARK


def test_long_texts_and_large_metadata_are_cut() -> None:
    [span] = Intake().take(
        datagram(
            1,
            name="n" * 5000,
            annotations={f"A{number}": "x" * 5000 for number in range(5)} | {f"B{number}": 1 for number in range(60)},
            metadata={"large": {"a": "x" * 20_000}},
        )
    )

    assert len(span.name) == 200 and len(str(span.attributes["aws.xray.annotation.A0"])) == 1000
    assert sum(name.startswith("aws.xray.annotation.") for name in span.attributes) == 50
    assert span.attributes["aws.xray.metadata.large"] == f'"{TOO_LARGE}"'


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_joining, "_MOST_WAITING", 2)
    monkeypatch.setattr(open_traces, "_SPANS_EACH", 4)
    intake = Intake()
    orphans = [datagram(number, identifier(10 * number)) for number in (2, 3, 4)]

    intake.take(*orphans, *(datagram(10 * number) for number in (2, 3, 4)))
    assert {span.name for span in intake.spans} == {"s20", "s30", "s3", "s40"}, "the oldest had to go; four in all"

    intake = Intake()
    intake.has_room = False
    intake.take(datagram(1))
    intake.has_room = True
    assert [span.name for span in intake.take(datagram(1))] == ["s1"]


def test_ended_invocations_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_traces, "_MOST_ENDED", 2)
    intake = Intake()
    ended = [intake.begin(identifier(100 + number), trace=f"{number:032x}") for number in range(1, 5)]
    for each in ended:
        intake.end(each)

    known = [number for number in range(1, 5) if intake.open.of_handler(identifier(100 + number)) is not None]
    assert known == [3, 4]
    assert intake.open.of_handler(HANDLER) is not None, "it still runs"

    monkeypatch.setattr(open_traces, "_MOST_BYTES", 10)
    intake.end(intake.begin(identifier(200), b"x" * 11, trace="9" * 32))
    assert intake.open.of_handler(identifier(200)) is None, "its event is too large to be kept"


def test_a_later_invocation_in_the_same_trace_is_redacted_by_its_own_event() -> None:
    intake = Intake()
    intake.take(datagram(1))
    intake.begin(identifier(300), b'{"token": "canary-1"}')
    spans = intake.take(datagram(2, name="canary-1"))  # X-Ray's SDK names the first invocation's span as parent

    assert [span.name for span in spans] == ["s1", MARK]


def test_an_event_is_forgotten_with_its_invocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_traces, "_MOST_ENDED", 0)
    intake = Intake()
    owner = intake.open.of_handler(HANDLER)
    for number in (300, 301):
        intake.end(intake.begin(identifier(number), b"forgotten"))

    assert owner is not None
    assert [owner.take_event(), owner.take_event()] == [b"{}", None]


def until(condition: Any) -> None:
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begun_s < 250
        pause(begun_s)


@pytest.fixture
def sending() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        yield sender


def test_datagrams_are_received_until_the_end_and_a_flood_is_slowed(
    sending: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_receiver, "_DATAGRAMS_PER_S", 50.0)
    monkeypatch.setattr(segment_receiver, "_MOST_DATAGRAMS", 50.0)
    intake, lines = Intake(), []
    receiver = SegmentReceiver(0, intake.joiner, report=lines.append)
    host, port = receiver.address.split(":")
    begun_s = time.monotonic()
    for number in range(1, 76):
        sending.sendto(datagram(number), (host, int(port)))
    until(lambda: len(intake.spans) == 75)
    took_s = time.monotonic() - begun_s
    sending.sendto(datagram(76), (host, int(port)))
    receiver.close()

    assert host == "127.0.0.1" and took_s >= 0.45, "50 immediately, and 25 in half a second"
    [line] = lines
    assert "faster than thawd takes them" in line
    assert len(intake.spans) == 76
    until(lambda: all(thread.name != "segments" for thread in threading.enumerate()))


def test_a_port_that_is_taken_is_reported_and_another_is_used(sending: socket.socket) -> None:
    sending.bind(("127.0.0.1", 0))
    port, lines = sending.getsockname()[1], []
    receiver = segment_receiver.opened(port, Intake().joiner, report=lines.append)
    assert receiver is not None
    receiver.close()

    [line] = lines
    assert receiver.address != f"127.0.0.1:{port}"
    assert f"on {receiver.address}, because UDP port {port} cannot be used" in line


def test_offered_spans_are_bounded_and_never_replace_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_sender, "_MOST_OFFERED_BYTES", 1000)
    collector = Collector()
    collector.answers = [503]
    sender = SpanSender(collector.url, report=lambda line: None)
    span = Span("f", TRACE, identifier(1), HANDLER, "n" * 300, INTERNAL, NOW, NOW + 1)
    try:
        offered = [sender.offer(span) for _ in range(4)]
        sender.add(span._replace(name="own"))
        until(lambda: len(collector.spans()) == 3)
        assert offered == [True, True, False, False] and sender.refused == 2
        until(lambda: sender.offer(span))  # there is room again
    finally:
        sender.close()
        collector.close()


def test_a_functions_own_variables_count() -> None:
    targets = TraceTargets("http://127.0.0.1:4318/", "127.0.0.1:9000")

    def variables(**own: str) -> dict[str, str]:
        return trace_variables(targets, function="f", own=own)

    assert variables()["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://127.0.0.1:4318/v1/traces"
    assert not [name for name in variables(OTEL_EXPORTER_OTLP_ENDPOINT="http://x") if name.startswith("OTEL_EXPORTER")]
    assert "OTEL_SERVICE_NAME" not in variables(OTEL_RESOURCE_ATTRIBUTES="service.name=x")
    assert "AWS_XRAY_DAEMON_ADDRESS" not in variables(AWS_XRAY_DAEMON_ADDRESS="127.0.0.1:2000")
    assert "AWS_XRAY_DAEMON_ADDRESS" not in trace_variables(TraceTargets("http://h", None), function="f", own={})
    assert trace_variables(TraceTargets(None, "127.0.0.1:9000"), function="f", own={}) == {
        "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:9000",
        "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
    }
