"""Spans of a real server arrive at a collector: one trace across bucket, queue and functions, and nothing secret."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.collector import Collector, Received

from .conftest import Project, Running, eventually

CODE = """
import json, os
def upload(event, context):
    import boto3
    key = event["Records"][0]["s3"]["object"]["key"]
    with open(os.path.join(os.environ["UPLOADS"], key)) as file:
        url = json.load(file)["url"]
    client = boto3.client(
        "lambda", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.invoke(FunctionName="next", InvocationType="Event", Payload=json.dumps({"password": "canary-1"}))
    return {"trace": os.environ["_X_AMZN_TRACE_ID"]}
def following(event, context):
    return {"trace": os.environ["_X_AMZN_TRACE_ID"]}
def fail(event, context):
    print("canary-2")
    raise ValueError("password=canary-3")
"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SERVER, PRODUCER, CONSUMER = 2, 4, 5


class Traced(NamedTuple):
    running: Running
    collector: Collector

    def spans(self, trace_id: str, count: int, *names: str) -> list[Received]:
        """Wait for a number of spans of a trace, and for spans of these names, and return the trace's spans."""

        def found() -> list[Received]:
            return [span for span in self.collector.spans() if span.trace_id == trace_id]

        def has_all() -> bool:
            spans = found()
            return len(spans) >= count and {span.name for span in spans}.issuperset(names)

        eventually(has_all, what=f"{count} spans, among them {names}")
        return found()

    def request(self, path: str, body: bytes | None, *, method: str = "POST", **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(f"{self.running.url}{path}", body, method=method)
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.headers


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    project = Project(tmp_path_factory.mktemp("traces"))
    project.code(CODE)
    collector = Collector()
    (project.root / "uploads").mkdir()
    project.config(
        f"""
        traces = "{collector.url}"
        snapshots = "off"
        [functions.up]
        handler = "app.upload"
        environment = {{ UPLOADS = "{project.root / "uploads"}" }}
        [functions.next]
        handler = "app.following"
        on_success = "table:seen"
        [functions.fail]
        handler = "app.fail"
        [functions.limited]
        handler = "app.following"
        reserved_concurrency = 0
        [buckets.uploads]
        path = "uploads"
        notify = [{{ function = "up" }}]
        [tables.seen]
        [routes]
        "GET /fail/{{id}}" = "fail"
        """
    )
    with project.up() as running:
        try:
            yield Traced(running, collector)
        finally:
            collector.close()


def test_an_upload_its_handler_and_the_function_that_it_invokes_are_one_trace(traced: Traced) -> None:
    body = json.dumps({"url": traced.running.url, "token": "canary-4"}).encode()

    status, _ = traced.request("/uploads/a", body, method="PUT", traceparent=f"00-{TRACE}-{PARENT}-01")
    spans = traced.spans(TRACE, 12, "up", "next", "send next", "deliver table")

    assert status == 200
    [up] = [span for span in spans if span.name == "up"]
    assert (up.kind, up.service, up.parent_id) == (CONSUMER, "up", PARENT)
    assert up.attributes["faas.trigger"] == "datasource" and up.attributes["faas.document.collection"] == "uploads"
    assert up.attributes["faas.coldstart"] is True and up.attributes["thawd.start"] in ("cold", "fork")
    stages = {span.name: span for span in spans if span.parent_id == up.span_id}
    assert set(stages) == {"wait", f"start {up.attributes['thawd.start']}", "handler"}
    queues = [span for span in spans if span.name == "queue"]
    assert [span.parent_id for span in queues if span.service == "up"] == [PARENT]
    [send] = [span for span in spans if span.kind == PRODUCER and span.name == "send next"]
    assert send.parent_id == stages["handler"].span_id, "boto3's call is a child of the handler"
    [following] = [span for span in spans if span.name == "next"]
    assert (following.kind, following.service, following.parent_id) == (CONSUMER, "next", send.span_id)
    assert [span.parent_id for span in queues if span.service == "next"] == [send.span_id]
    [deliver] = [span for span in spans if span.name == "deliver table"]
    assert (deliver.service, deliver.parent_id) == ("next", following.span_id)
    [row] = traced.running.project.rows("seen").values()
    [handler] = [span for span in spans if span.name == "handler" and span.service == "next"]
    assert f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={handler.span_id};Sampled=1" in row["trace"]
    assert all(span.began_ns <= span.ended_ns for span in spans)
    assert up.began_ns <= stages["handler"].began_ns <= send.began_ns <= following.began_ns


def test_a_failed_request_has_its_route_and_its_error_and_the_trace_of_its_header(traced: Traced) -> None:
    root = "1-5759e988-bd862e3fe1be46a994272793"

    status, headers = traced.request(
        "/fail/canary-5?password=canary-6",
        None,
        method="GET",
        x_amzn_trace_id=f"Root={root};Parent=53995c3f42cd8ad8;Sampled=1",
        authorization="Bearer canary-7",
    )
    spans = traced.spans("5759e988bd862e3fe1be46a994272793", 4)

    assert status == 500 and "traceparent" not in headers
    [fail] = [span for span in spans if span.name == "fail"]
    assert (fail.kind, fail.parent_id, fail.status) == (SERVER, "53995c3f42cd8ad8", 2)
    expected = {
        "faas.trigger": "http",
        "http.request.method": "GET",
        "http.route": "/fail/{id}",
        "http.response.status_code": 500,
        "error.type": "ValueError",
    }
    assert expected.items() <= fail.attributes.items()
    assert {"gateway", "wait", "handler"} <= {span.name for span in spans if span.parent_id == fail.span_id}


def test_a_request_that_wants_no_trace_has_none_and_a_request_without_a_trace_begins_one(traced: Traced) -> None:
    path = "/2015-03-31/functions/next/invocations"

    traced.request(path, b"{}", traceparent=f"00-{'1' * 32}-{PARENT}-00")
    _, headers = traced.request(path, b"{}")
    root = headers["x-amzn-trace-id"].partition(";")[0].removeprefix("Root=1-").replace("-", "")
    spans = traced.spans(root, 3)

    assert [span.parent_id for span in spans if span.kind == SERVER] == [""]
    assert not [span for span in traced.collector.spans() if span.trace_id == "1" * 32]


def test_a_throttled_request_has_a_span(traced: Traced) -> None:
    trace = "2" * 32
    path = "/2015-03-31/functions/limited/invocations"

    status, _ = traced.request(path, b"{}", traceparent=f"00-{trace}-{PARENT}-01")
    spans = traced.spans(trace, 3)

    assert status == 429
    [limited] = [span for span in spans if span.name == "limited"]
    assert (limited.status, limited.attributes["error.type"]) == (2, "TooManyRequestsException")


def test_no_span_contains_a_payload_a_header_a_path_or_a_message(traced: Traced) -> None:
    sent = b"".join(traced.collector.bodies)

    assert b"fail" in sent
    assert b"canary" not in sent
