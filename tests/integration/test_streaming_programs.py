"""Programs of the Runtime API that stream: Node's `awslambda.streamifyResponse`, and a custom bootstrap."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thawd.gateway.function_urls.table import url_id

from .conftest import DEADLINE_S, Project, Running, eventually

NODE = """
import fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const handler = awslambda.streamifyResponse(async (event, stream, context) => {
  event = event.body === undefined ? event : JSON.parse(event.body);
  if (event.raise === "before") throw new Error("no such luck");
  if (event.status) {
    const head = { statusCode: event.status, headers: { "X-One": "1" }, cookies: ["a=1", "b=2"] };
    stream = awslambda.HttpResponseStream.from(stream, head);
  } else if (event.type) stream.setContentType(event.type);
  for (const part of event.parts ?? []) stream.write(part);
  if (event.wait) {
    while (!fs.existsSync(event.wait)) await sleep(5);
    stream.write("waited");
  }
  if (event.raise === "after") throw new Error("no such luck");
  stream.end();
});
"""
PROGRAM = f"""
#!{sys.executable}
import http.client, json, os, sys, time
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
PREFIX = "/2018-06-01/runtime/invocation/"
while True:
    api.request("GET", PREFIX + "next")
    answer = api.getresponse()
    event = json.loads(answer.read())
    event = json.loads(event["body"]) if "body" in event else event
    identifier = answer.getheader("Lambda-Runtime-Aws-Request-Id")

    def pieces():
        for part in event.get("parts", []):
            yield part.encode()
        while "wait" in event and not os.path.exists(event["wait"]):
            time.sleep(0.005)
        if "wait" in event:
            yield b"waited"
        for number in range(event.get("blocks", 0)):
            yield bytes([number % 256]) * event["block_bytes"]
        if "progress" in event:
            open(event["progress"], "w").write("all written")
        if "exit" in event:
            os._exit(event["exit"])

    headers = {{"Lambda-Runtime-Function-Response-Mode": "streaming"}}
    if "type" in event:
        headers["Content-Type"] = event["type"]
    api.request("POST", PREFIX + identifier + "/response", body=pieces(), headers=headers, encode_chunked=True)
    answer = api.getresponse()
    print("response:", answer.status, answer.read(), flush=True)
"""
KINDS = ("node", "program")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("streaming-programs"))
    project.code(NODE, "node/index.mjs")
    project.code(PROGRAM.lstrip(), "program/bootstrap")
    (project.root / "program" / "bootstrap").chmod(0o755)
    node = ""
    if shutil.which("node") is not None:
        node = """
        [functions.node]
        handler = "index.handler"
        runtime = "nodejs20.x"
        code = "node"
        url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }
        """
    project.config(
        f"""
        {node}
        [functions.program]
        handler = "any.thing"
        runtime = "provided.al2023"
        code = "program"
        url = {{ auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }}
        [functions.short]
        handler = "any.thing"
        runtime = "provided.al2023"
        code = "program"
        timeout_s = 4
        """
    )
    with project.up() as server:
        yield server


@pytest.fixture(params=KINDS)
def function(request: pytest.FixtureRequest) -> str:
    if request.param == "node" and shutil.which("node") is None:
        pytest.skip("there is no node here")
    return str(request.param)


def streamed(running: Running, function: str, event: Any) -> tuple[bytes, dict[str, Any]]:
    """Return the payload and the completion message."""
    answer = running.client().invoke_with_response_stream(FunctionName=function, Payload=json.dumps(event).encode())
    messages = list(answer["EventStream"])
    payload = b"".join(one["PayloadChunk"]["Payload"] for one in messages if "PayloadChunk" in one)
    return payload, messages[-1]["InvokeComplete"]


def post(running: Running, function: str, event: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/_urls/{url_id(function)}/", body=json.dumps(event), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_parts_arrive_while_the_program_is_still_running(running: Running, function: str, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    answer = running.client().invoke_with_response_stream(
        FunctionName=function, Payload=json.dumps({"parts": ["first"], "wait": str(go_on)}).encode()
    )
    messages = iter(answer["EventStream"])
    assert next(messages)["PayloadChunk"]["Payload"] == b"first"
    go_on.touch()
    assert list(messages) == [{"PayloadChunk": {"Payload": b"waited"}}, {"InvokeComplete": {}}]
    assert streamed(running, function, {"parts": ["next"]}) == (b"next", {})


def test_an_answer_has_its_type(running: Running, function: str) -> None:
    status, headers, body = post(running, function, {"type": "text/csv", "parts": ["x", "y"]})
    assert (status, headers["content-type"], body) == (200, "text/csv", b"xy")
    assert post(running, function, {"parts": ["x"]})[1]["content-type"] == "application/octet-stream"


def test_a_buffered_invocation_gets_the_whole_answer(running: Running, function: str) -> None:
    answer = running.client().invoke(FunctionName=function, Payload=b'{"parts": ["a", "b"]}')
    assert (answer["Payload"].read(), "FunctionError" in answer) == (b"ab", False)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_node_sets_status_headers_and_cookies(running: Running) -> None:
    status, headers, body = post(running, "node", {"status": 203, "parts": ["x"]})
    assert (status, headers["x-one"], headers.get_all("set-cookie"), body) == (203, "1", ["a=1", "b=2"], b"x")


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_what_node_throws_is_told_before_and_after_the_first_part(running: Running) -> None:
    for when, parts in (("before", b""), ("after", b"part")):
        payload, completion = streamed(running, "node", {"parts": ["part"], "raise": when})
        assert (payload, completion["ErrorCode"]) == (parts, "Error")
        assert json.loads(completion["ErrorDetails"])["errorMessage"] == "no such luck"
    assert post(running, "node", {"raise": "before"})[0] == 502
    with pytest.raises(http.client.IncompleteRead):
        post(running, "node", {"parts": ["part"], "raise": "after"})


def test_a_program_that_ends_halfway_or_runs_out_of_time_is_told(running: Running, tmp_path: Path) -> None:
    payload, completion = streamed(running, "program", {"parts": ["part"], "exit": 3})
    # thawd may see the end of the connection before the end of the process.
    assert payload == b"part"
    assert completion["ErrorCode"] in ("Runtime.ExitError", "Runtime.TruncatedResponse")
    assert streamed(running, "program", {"parts": ["next"]}) == (b"next", {})
    payload, completion = streamed(running, "short", {"parts": ["part"], "wait": str(tmp_path / "never")})
    assert (payload, completion["ErrorCode"]) == (b"part", "Sandbox.Timedout")


def test_an_answer_of_a_program_over_200_mb_is_cut_and_told(running: Running) -> None:
    answer = running.client().invoke_with_response_stream(
        FunctionName="program", Payload=json.dumps({"blocks": 210, "block_bytes": 1 << 20}).encode()
    )
    size, completion = 0, {}
    for message in answer["EventStream"]:
        size += len(message.get("PayloadChunk", {}).get("Payload", b""))
        completion = message.get("InvokeComplete", completion)
    assert (size <= 200 << 20, size > 199 << 20) == (True, True)
    assert completion["ErrorCode"] == "Function.ResponseSizeTooLarge"


def test_a_client_that_does_not_read_holds_the_program_up(running: Running, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    event = {"blocks": 40, "block_bytes": 1 << 20}
    assert len(post(running, "program", event)[2]) == 40 << 20
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps({**event, "progress": str(progress)}).encode()
    head = f"POST /_urls/{url_id('program')}/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect((host, int(port)))
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        client.recv(100)
        # Another client reads a whole answer meanwhile, which gives the first stream time.
        assert len(post(running, "program", event)[2]) == 40 << 20
        assert not progress.exists()
        client.settimeout(DEADLINE_S)
        left = 40 << 20
        while left > 0 and (data := client.recv(1 << 20)):
            left -= len(data)
        assert left <= 0
    eventually(progress.exists, what="the end of the program's answer")
