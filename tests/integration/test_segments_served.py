"""What SDKs in handlers trace arrives in the invocation's trace, from environments that were thawed, too.

The SDKs are Powertools' Tracer with AWS's X-Ray SDK, and OpenTelemetry's SDK with its exporter over HTTP. Both are made
in the init phase, so thawed copies have them from the snapshot.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.collector import Collector, Received

from .conftest import Project, eventually
from .test_traces_served import Traced

CODE = """
import os, time
import boto3
from aws_lambda_powertools import Tracer
tracer = Tracer(service="orders")
session = boto3.Session("a", "b", region_name="us-east-1")

@tracer.capture_method
def price(item):
    tracer.put_annotation("Item", item)
    tracer.put_annotation("Count", -3)
    tracer.put_metadata("order", {"password": "canary-1", "kept": "seen"})
    return {"answer": item}

@tracer.capture_lambda_handler
def order(event, context):
    if "password" in event:
        raise ValueError("refused with " + event["password"])
    for number in range(event.get("items", 1)):
        price("item %d" % number)
    if "url" in event:
        client = session.client("lambda", endpoint_url=event["url"])
        client.invoke(FunctionName="next", Payload=b"{}")
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    return {"said": event.get("token"), "stream": os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]}

"""
LIGHT = """
import os, socket

def following(event, context):
    return {name: value for name, value in os.environ.items() if name.startswith(("OTEL_", "AWS_XRAY_"))}

def say(event, context):
    host, port = os.environ["AWS_XRAY_DAEMON_ADDRESS"].split(":")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for text in event["datagrams"]:
        sender.sendto(text.encode("latin-1"), (host, int(port)))
    return os.environ["_X_AMZN_TRACE_ID"]
"""
OTEL = """
import os, time
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.aws.aws_xray_propagator import AwsXRayPropagator, TRACE_HEADER_KEY
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=50))
tracer = provider.get_tracer("app")
with tracer.start_as_current_span("init"):
    pass
provider.force_flush()

def handler(event, context):
    parent = AwsXRayPropagator().extract({TRACE_HEADER_KEY: os.environ["_X_AMZN_TRACE_ID"]})
    with tracer.start_as_current_span(event["name"], context=parent):
        while "gate" in event and not os.path.exists(event["gate"]):
            time.sleep(0.005)
    if event.get("flush"):
        provider.force_flush()
    return os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
"""
CONFIG = """
traces = "{url}"
[functions.order]
handler = "app.order"
[functions.next]
handler = "light.following"
[functions.say]
handler = "light.say"
[functions.otel]
handler = "otel.handler"
"""
CLIENT = 3
HEADER = '{"format":"json","version":1}\n'


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    project = Project(tmp_path_factory.mktemp("segments"))
    project.code(CODE)
    project.code(LIGHT, "light.py")
    project.code(OTEL, "otel.py")
    collector = Collector()
    project.config(CONFIG.format(url=collector.url))
    with project.up() as running:
        try:
            yield Traced(running, collector)
        finally:
            collector.close()


def named(traced: Traced, *names: str, service: str = "") -> dict[str, Received]:
    """Wait for spans with these names, and return them by name."""

    def found() -> dict[str, Received]:
        return {span.name: span for span in traced.collector.spans() if not service or span.service == service}

    return eventually(lambda: set(names) <= found().keys() and found(), what=f"spans {names}")


def test_powertools_segments_are_below_the_handlers_span_and_the_trace_continues_below_them(traced: Traced) -> None:
    shown = traced.running.function("order")
    event = {"url": traced.running.url, "token": "canary-2"}

    answer, error = traced.running.invoke("order", event)
    spans = named(traced, "order", "handler", "## order", "## app.price", "lambda", "next")
    order, next_ = spans["## order"], spans["next"]

    assert error is None and answer["said"] == "canary-2" and shown["start"] == "thaw", traced.running.output
    [handler] = [span for span in traced.collector.spans() if (span.service, span.name) == ("order", "handler")]
    assert (order.service, order.trace_id, order.parent_id) == ("order", handler.trace_id, handler.span_id)
    assert handler.began_ns - 1_000_000_000 <= order.began_ns <= order.ended_ns <= handler.ended_ns + 1_000_000_000
    assert spans["## app.price"].parent_id == order.span_id
    call = spans["lambda"]
    assert (call.kind, call.parent_id) == (CLIENT, order.span_id)
    assert call.attributes["rpc.method"] == "Invoke" and call.attributes["http.response.status_code"] == 200
    assert (next_.trace_id, next_.parent_id) == (handler.trace_id, call.span_id), "boto3's call has its own span"


def test_with_a_collector_the_calls_of_all_functions_are_in_their_records_too(traced: Traced) -> None:
    answer = traced.running.client().invoke(FunctionName="order", Payload=json.dumps({"url": traced.running.url}))
    request_id = answer["ResponseMetadata"]["RequestId"]

    def names() -> set[str]:
        with urllib.request.urlopen(f"{traced.running.url}/_thawd/invocations/{request_id}", timeout=60) as found:
            return {call["name"] for call in json.loads(found.read())["calls"]}

    eventually(lambda: names() == {"## order", "## app.price", "lambda", "invoke next"}, what="the calls")


def test_annotations_and_metadata_are_redacted_by_the_rules_of_records(traced: Traced) -> None:
    traced.running.invoke("order", {"token": "canary-3"})
    _, error = traced.running.invoke("order", {"password": "canary-4"})
    spans = named(traced, "## app.price")

    def failures() -> list[Received]:
        return [span for span in traced.collector.spans() if span.name == "## order" and span.status == 2]

    [failure] = eventually(failures, what="the segment of the failure")
    assert error == "Unhandled" and failure.attributes["error.type"] == "ValueError"
    assert failure.attributes["exception.message"] == "refused with [redacted]"
    price = spans["## app.price"].attributes
    assert (price["aws.xray.annotation.Item"], price["aws.xray.annotation.Count"]) == ("item 0", -3)
    metadata = json.loads(price["aws.xray.metadata.orders"])
    assert metadata["order"] == {"password": "[redacted]", "kept": "seen"}
    said = [span for span in traced.collector.spans() if span.name == "## order"]
    assert all("aws.xray.metadata.orders" in span.attributes for span in said), "the answer, without the token"
    assert b"canary" not in b"".join(traced.collector.bodies)


def test_copies_that_were_thawed_side_by_side_send_segments_of_their_own(traced: Traced, tmp_path: Path) -> None:
    answers = traced.running.invoke_at_once("order", 3, {"items": 40}, gate=tmp_path / "gate")
    streams = {answer["stream"] for answer, _ in answers}

    def found() -> list[list[Received]]:
        spans = traced.collector.spans()
        handlers = {span.span_id: span.trace_id for span in spans if (span.service, span.name) == ("order", "handler")}
        tops = {span.span_id for span in spans if span.name == "## order" and span.parent_id in handlers}
        below = [span for span in spans if span.name == "## app.price" and span.parent_id in tops]
        groups = [[span for span in below if span.trace_id == trace] for trace in handlers.values()]
        return [group for group in groups if len(group) == 40]

    groups = eventually(lambda: len(found()) == 3 and found(), what="3 times 40 segments")
    assert len(streams) == 3, "three environments"
    assert len({span.span_id for group in groups for span in group}) == 120


def test_open_telemetrys_exporter_of_the_init_phase_exports_in_thawed_copies(traced: Traced, tmp_path: Path) -> None:
    shown = traced.running.function("otel")
    gate = tmp_path / "gate"
    answers = traced.running.invoke_at_once("otel", 3, {"name": "at once", "flush": True}, gate=gate)

    def at_once() -> list[tuple[Received, Received]]:
        """The spans of the function, and their parents."""
        all_spans = traced.collector.spans()
        handlers = {span.span_id: span for span in all_spans if span.name == "handler"}
        found = [span for span in all_spans if span.name == "at once"]
        return [(span, handlers[span.parent_id]) for span in found if span.parent_id in handlers]

    spans = eventually(lambda: len(at_once()) == 3 and at_once(), what="3 spans")
    assert shown["start"] == "thaw" and len({answer for answer, _ in answers}) == 3, traced.running.output
    assert len({span.span_id for span, _ in spans}) == 3, "no two copies have the same random numbers"
    assert all((span.service, span.trace_id) == ("otel", handler.trace_id) for span, handler in spans)

    # Without a flush, the exporter's thread sends the span as soon as the environment runs again.
    traced.running.invoke("otel", {"name": "in the background"})

    def sent() -> bool:
        traced.running.invoke("otel", {"name": "another"})
        return any(span.name == "in the background" for span in traced.collector.spans())

    eventually(sent, what="a span from the exporter's thread")


def test_a_function_cannot_add_spans_to_the_trace_of_another(traced: Traced) -> None:
    spans = named(traced, "order", "handler", service="order")
    handler = spans["handler"]
    root = f"1-{handler.trace_id[:8]}-{handler.trace_id[8:]}"
    now = handler.ended_ns / 1e9
    good = {"name": "own", "start_time": now, "end_time": now, "type": "subsegment"}

    def said(number: int, **changes: Any) -> str:
        return HEADER + json.dumps({"id": f"{number:016x}", **good, **changes})

    datagrams = [
        said(1, name="forged 1", trace_id=root, parent_id="1234567890abcdef"),
        said(2, name="forged 2", trace_id="1-" + "1" * 8 + "-" + "2" * 24, parent_id=handler.span_id),
        "",
        "\n",
        HEADER,
        "\xff\xfe" + HEADER,
        HEADER + "\xff{",
        HEADER + "[" * 30_000,
        HEADER + "{}",
    ]
    traced.running.invoke("say", {"datagrams": datagrams})
    traced.running.invoke("order", {})
    eventually(lambda: len([s for s in traced.collector.spans() if s.name == "## order"]) >= 2)

    assert not [span for span in traced.collector.spans() if span.name.startswith("forged")]


def test_functions_learn_where_to_send_what_they_trace(traced: Traced) -> None:
    answer, _ = traced.running.invoke("next", {})
    port = urlsplit(traced.running.url).port

    assert answer == {
        "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
        "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{traced.collector.url}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "next",
    }
