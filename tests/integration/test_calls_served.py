"""What handlers called is on the pages of their invocations, nested, from environments that were thawed, too."""

from __future__ import annotations

import io
import json
import re
import socket
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from .conftest import Project, Running, eventually

CODE = """
import os, time
import boto3
from aws_lambda_powertools import Tracer
tracer = Tracer(service="orders")
session = boto3.Session("a", "b", region_name="us-east-1")

@tracer.capture_method
def price(item):
    tracer.put_metadata("order", {"password": "canary-1"})
    if item == "bad":
        raise ValueError("no price, password=canary-2")
    return item

@tracer.capture_lambda_handler
def order(event, context):
    client = session.client("lambda", endpoint_url=event["url"])
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    for item in event.get("items", ["one"]):
        try:
            price(item)
        except ValueError:
            pass
    with tracer.provider.in_subsegment("## " + event.get("name", "pay")):
        client.invoke(FunctionName="next", Payload=b"{}")
    return os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
"""
PLAIN = """
import json, os, socket, time
import boto3
session = boto3.Session("a", "b", region_name="us-east-1")

def boto(event, context):
    client = session.client("lambda", endpoint_url=event["url"])
    client.invoke(FunctionName="next", Payload=b"{}")
    client.invoke(FunctionName="next", InvocationType="Event", Payload=b'{"password": "canary-3"}')
    s3 = session.client("s3", endpoint_url=event["url"])
    s3.put_object(Bucket="uploads", Key="canary-5", Body=b"canary-6")
    try:
        s3.get_object(Bucket="uploads", Key="canary-7")
    except s3.exceptions.NoSuchKey:
        pass
    return os.environ["_X_AMZN_TRACE_ID"]

def labels(event, context):
    import thawd
    table = thawd.table("labels")
    if "gate" in event:
        while not os.path.exists(event["gate"]):
            time.sleep(0.005)
    for key in event["keys"]:
        table.put(key, {"password": "canary-8"})
    table.get("canary-9")

def following(event, context):
    return {name: value for name, value in os.environ.items() if name.startswith(("OTEL_", "AWS_XRAY", "_X_AMZN"))}

def say(event, context):
    fields = dict(field.split("=", 1) for field in os.environ["_X_AMZN_TRACE_ID"].split(";"))
    host, port = os.environ["AWS_XRAY_DAEMON_ADDRESS"].split(":")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for segment in event["segments"]:
        now = time.time()
        for each in (segment, *segment.get("subsegments", ())):
            each.update(id=os.urandom(8).hex(), start_time=now, end_time=now)
        segment.update(trace_id=fields["Root"], parent_id=fields["Parent"])
        text = '{"format":"json","version":1}\\n' + json.dumps(segment)
        sender.sendto(text.encode(), (host, int(port)))
"""
CONFIG = """
[functions.order]
handler = "app.order"
tracing = "Active"
[functions.boto]
handler = "plain.boto"
tracing = "Active"
[functions.say]
handler = "plain.say"
tracing = "Active"
[functions.next]
handler = "plain.following"
[functions.labels]
handler = "plain.labels"
tracing = "Active"
[functions.untraced]
handler = "plain.labels"
[buckets.uploads]
[tables.labels]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("calls"))
    project.code(CODE)
    project.code(PLAIN, "plain.py")
    project.config(CONFIG)
    with project.up() as running:
        yield running


def ask(running: Running, path: str, body: bytes | None = None, **headers: str) -> tuple[str, Any]:
    request = urllib.request.Request(f"{running.url}{path}", body)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode(), answer.headers


def invoke(running: Running, function: str, event: Any, **headers: str) -> str:
    """Invoke a function, and return the request id."""
    path = f"/2015-03-31/functions/{function}/invocations"
    body = json.dumps({"url": running.url, **event}).encode()
    return str(ask(running, path, body, **headers)[1]["x-amzn-requestid"])


def page(running: Running, request_id: str) -> str:
    return ask(running, f"/_thawd/window/invocations/{request_id}", accept="text/html")[0]


def tree(running: Running, request_id: str, count: int) -> dict[str, str]:
    """Wait for a number of calls, and return the names of the calls that they are parts of, by name; top ones: ''."""

    def calls() -> list[dict[str, Any]]:
        document = json.loads(ask(running, f"/_thawd/invocations/{request_id}")[0])
        found: list[dict[str, Any]] = document["calls"]
        return found

    found = eventually(lambda: len(calls()) >= count and calls(), what=f"{count} calls of {request_id}")
    assert not {"handler", "span"} & found[0].keys(), "who knows an id of a span may add others below it"
    return {call["name"]: "" if call["parent"] is None else found[call["parent"]]["name"] for call in found}


def test_subsegments_of_a_thawed_function_are_nested_on_its_page(server: Running) -> None:
    shown = server.function("order")
    request_id = invoke(server, "order", {"items": ["one", "bad"], "token": "canary-4"})

    assert tree(server, request_id, 6) == {
        "## order": "",
        "## app.price": "## order",
        "## pay": "## order",
        "lambda": "## pay",
        "invoke next": "lambda",
    }
    text = page(server, request_id)
    assert shown["start"] == "thaw", server.output
    table = text[text.index("<caption>What the handler called") :]
    rows = re.findall(r'<th scope="row"><div class="call in(\d)">(?:↳ )?([^<]+)<', table)
    assert [(int(depth), name) for depth, name in rows] == [
        (0, "## order"),
        (1, "## app.price"),
        (1, "## app.price"),
        (1, "## pay"),
        (2, "lambda"),
        (3, "invoke next"),
    ]
    assert "failed: ValueError: no price, password=[redacted]" in table and "Invoke, next, status 200" in table
    assert text.count('class="stage request"') == 2 and text.count('class="stage failed"') == 1
    stored = b"".join(path.read_bytes() for path in server.project.data.glob("records.db*"))
    assert b"## app.price" in stored and b"canary" not in stored


def test_requests_that_boto3_sends_without_a_tracer_are_on_the_page(server: Running) -> None:
    request_id = invoke(server, "boto", {})

    assert tree(server, request_id, 4) == dict.fromkeys(
        ("invoke next", "send next", "s3 PUT uploads", "s3 GET uploads"), ""
    )
    table = page(server, request_id).partition("<caption>What the handler called")[2].partition("</table>")[0]
    assert table.count("status 404") == table.count(">failed<") == 1 and "status 200" in table
    assert "canary" not in table


def test_operations_on_tables_are_on_the_page_of_the_invocation_that_made_them(server: Running, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(3) as threads:
        asked = [
            threads.submit(invoke, server, name, {"gate": str(gate), "keys": ["canary"] * count})
            for name, count in (("labels", 1), ("labels", 2), ("untraced", 4))
        ]
        try:
            eventually(lambda: server.function("labels")["environments"]["busy"] == 2, what="2 at once")
        finally:
            gate.touch()
        one, two, untraced = [each.result() for each in asked]

    for request_id, count in ((one, 1), (two, 2), (invoke(server, "labels", {"keys": []}), 0)):
        assert tree(server, request_id, count + 1) == ({"table put labels": ""} if count else {}) | {
            "table get labels": ""
        }
        document = json.loads(ask(server, f"/_thawd/invocations/{request_id}")[0])
        assert len(document["calls"]) == count + 1 and "canary" not in str(document["calls"])
    assert json.loads(ask(server, f"/_thawd/invocations/{untraced}")[0])["calls"] is None


def test_a_function_that_is_not_traced_gets_the_trace_header_as_it_came(server: Running) -> None:
    header = f"Root=1-5759e988-{'b' * 24};Parent=53995c3f42cd8ad8;Sampled=1"
    path = "/2015-03-31/functions/next/invocations"
    text, headers = ask(server, path, b"{}", X_Amzn_Trace_Id=header)

    found = json.loads(text)
    assert found.keys() == {"_X_AMZN_TRACE_ID"} and found["_X_AMZN_TRACE_ID"].startswith(header)
    assert "What the handler called" not in page(server, headers["x-amzn-requestid"])


def test_invocations_at_the_same_time_do_not_mix(server: Running, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def one(number: int) -> str:
        event = {"name": f"of {number}", "items": [], "gate": str(gate)}
        header = f"Root=1-5759e988-{'c' * 24};Parent={number + 1:016x};Sampled=1"
        return invoke(server, "order", event, X_Amzn_Trace_Id=header)

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(one, number) for number in range(3)]
        try:
            eventually(lambda: server.function("order")["environments"]["busy"] == 3, what="3 at once")
        finally:
            gate.touch()
        ids = [each.result() for each in asked]

    for number, request_id in enumerate(ids):
        found = tree(server, request_id, 4)
        assert found == {"## order": "", f"## of {number}": "## order", "lambda": f"## of {number}"} | {
            "invoke next": "lambda"
        }


def test_a_second_invocation_in_the_same_environment_and_trace_has_its_own_calls(server: Running) -> None:
    header = f"Root=1-5759e988-{'d' * 24};Parent={'1' * 16};Sampled=1"
    ids = [invoke(server, "order", {"name": name, "items": []}, X_Amzn_Trace_Id=header) for name in ("a", "b")]

    for name, request_id in zip(("a", "b"), ids, strict=True):
        assert f"## {name}" in tree(server, request_id, 4), "X-Ray's SDK names the first invocation in both"


def test_hostile_names_are_texts_and_too_many_calls_are_counted(server: Running) -> None:
    script = "<script>alert(1)</script>"
    hostile = {
        "name": f"{script} \x00 \u202e {'x' * 300}",
        "fault": True,
        "cause": {"exceptions": [{"type": script, "message": f'"{script}'}]},
        "http": {"request": {"method": script, "url": f"http://h/{script}"}},
    }
    many = {"name": "many", "subsegments": [{"name": f"s{number}"} for number in range(240)]}
    request_id = invoke(server, "say", {"segments": [many]})
    found = eventually(
        lambda: "41 further calls were not kept" in (text := page(server, request_id)) and text, what="41 left out"
    )

    assert (
        "<script>alert" not in found and found.count("<rect") < 100 and "The drawing has the first 60 calls." in found
    )
    request_id = invoke(server, "say", {"segments": [hostile]})
    tree(server, request_id, 1)
    found = page(server, request_id)
    assert "<script>alert" not in found and "&lt;script&gt;alert(1)&lt;/script&gt;" in found
    assert "failed: _OTHER: &quot;&lt;script&gt;" in found


def archive(code: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("app.py", code)
    return buffer.getvalue()


def test_tracing_is_switched_by_the_api_and_costs_no_port_before(project: Project) -> None:
    project.code(PLAIN, "plain.py")
    project.config('[functions.next]\nhandler = "plain.following"\n')
    with project.up() as running:
        address = ("127.0.0.1", urlsplit(running.url).port)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as free:
            free.bind(address)  # no segments are received
        client = running.client()
        made = client.create_function(
            FunctionName="say", Runtime="python3.11", Role="arn:aws:iam::000000000000:role/r", Handler="app.say",
            Code={"ZipFile": archive(PLAIN)}, TracingConfig={"Mode": "Active"},
        )  # fmt: skip
        client.get_waiter("function_active_v2").wait(FunctionName="say")
        first = invoke(running, "say", {"segments": [{"name": "seen"}]})
        assert tree(running, first, 1) == {"seen": ""} and made["TracingConfig"] == {"Mode": "Active"}
        client.update_function_configuration(FunctionName="say", TracingConfig={"Mode": "PassThrough"})
        client.get_waiter("function_updated_v2").wait(FunctionName="say")
        assert client.get_function_configuration(FunctionName="say")["TracingConfig"] == {"Mode": "PassThrough"}
        second = invoke(running, "say", {"segments": []})
        assert json.loads(ask(running, f"/_thawd/invocations/{second}")[0])["calls"] is None
    with project.up() as running:
        assert tree(running, first, 1) == {"seen": ""}, "calls are there after a restart"
