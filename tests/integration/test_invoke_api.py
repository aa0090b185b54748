"""The Invoke API through boto3 and the AWS CLI, as clients of Lambda see it."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import Project, Running, eventually

CODE = """
import json, os, sys, time
import thawd

def handler(event, context):
    if not isinstance(event, dict):
        return event
    action = event.get("do")
    if action == "raise":
        raise ValueError("no such luck")
    if action == "sleep":
        time.sleep(event["s"])
    while action == "wait" and not os.path.exists(event["for"]):
        time.sleep(0.01)
    if action == "exit":
        os._exit(event["status"])
    if action == "sys.exit":
        sys.exit(event["status"])
    if action == "unserialisable":
        return object()
    if action == "large":
        return "x" * event["bytes"]
    if action == "print":
        for number in range(event["lines"]):
            print("line", number)
    if action == "context":
        return {name: getattr(context, name) for name in (
            "aws_request_id", "function_name", "function_version", "invoked_function_arn", "memory_limit_in_mb",
            "log_group_name", "log_stream_name")} | {
            "client": context.client_context.custom if context.client_context else None,
            "app": context.client_context.client.app_title if context.client_context else None,
            "left": context.get_remaining_time_in_millis(),
            "trace": os.environ.get("_X_AMZN_TRACE_ID"),
        }
    if action == "put":
        thawd.table("seen").put(event["key"], {"value": event["value"]})
    return event
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("invoke")
    project = Project(root)
    project.code(CODE)
    project.code("def handler(event, context):\n    return 1\n", "other/app.py")
    project.config(
        """
        [functions.echo]
        handler = "app.handler"
        timeout_s = 60
        memory_mb = 256
        [functions.brief]
        handler = "app.handler"
        timeout_s = 1
        [functions.none]
        handler = "app.handler"
        reserved_concurrency = 0
        [functions.one]
        handler = "app.handler"
        reserved_concurrency = 1
        [functions.failing]
        handler = "app.handler"
        maximum_retry_attempts = 1
        on_failure = "table:seen"
        [tables.seen]
        """
    )
    with project.up() as server:
        yield server


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    return error.value.response["Error"]["Code"], error.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_a_synchronous_invocation_returns_what_the_handler_returned(running: Running) -> None:
    answer = running.client().invoke(FunctionName="echo", Payload=b'{"a": [1, "\xc3\xa9", null]}')
    assert answer["StatusCode"] == 200
    assert answer["ExecutedVersion"] == "$LATEST"
    assert "FunctionError" not in answer
    assert json.loads(answer["Payload"].read()) == {"a": [1, "é", None]}
    assert len(answer["ResponseMetadata"]["RequestId"]) == 36


@pytest.mark.parametrize("payload", [b"null", b"1", b'"text"', b"[]", b"false"])
def test_any_json_value_is_an_event(running: Running, payload: bytes) -> None:
    answer = running.client().invoke(FunctionName="echo", Payload=payload)
    assert json.loads(answer["Payload"].read()) == json.loads(payload)


def test_no_payload_is_an_empty_event(running: Running) -> None:
    assert json.loads(running.client().invoke(FunctionName="echo")["Payload"].read()) == {}


@pytest.mark.parametrize(
    "name",
    [
        "echo:$LATEST",
        "arn:aws:lambda:us-east-1:000000000000:function:echo",
        "arn:aws:lambda:us-east-1:000000000000:function:echo:$LATEST",
        "000000000000:function:echo",
    ],
)
def test_a_function_is_found_by_name_and_arn(running: Running, name: str) -> None:
    assert running.invoke(name, 1) == (1, None)


def test_the_qualifier_latest_is_accepted_and_others_are_not_found(running: Running) -> None:
    assert running.invoke("echo", 1, Qualifier="$LATEST") == (1, None)
    with pytest.raises(ClientError) as error:
        running.invoke("echo", 1, Qualifier="7")
    assert code_of(error) == ("ResourceNotFoundException", 404)
    assert error.value.response["Error"]["Message"].endswith("function:echo:7")


def test_a_dry_run_answers_204_and_runs_nothing(running: Running) -> None:
    before = running.function("echo")["invocations"]
    answer = running.client().invoke(FunctionName="echo", InvocationType="DryRun", Payload=b'{"do": "raise"}')
    assert answer["StatusCode"] == 204
    assert running.function("echo")["invocations"] == before


def test_an_event_is_accepted_with_202_and_run_later(running: Running) -> None:
    answer = running.client().invoke(
        FunctionName="echo", InvocationType="Event", Payload=b'{"do": "put", "key": "k", "value": 7}'
    )
    assert answer["StatusCode"] == 202
    assert answer["Payload"].read() == b""
    assert eventually(lambda: running.project.rows("seen").get("k"), what="the row") == {"value": 7}


def test_a_failing_event_is_retried_with_its_request_id_and_then_given_up(running: Running) -> None:
    answer = running.client().invoke(FunctionName="failing", InvocationType="Event", Payload=b'{"do": "raise"}')
    request_id = answer["ResponseMetadata"]["RequestId"]
    record = eventually(lambda: running.project.rows("seen").get(request_id), what="the record")
    assert record["requestContext"]["condition"] == "RetriesExhausted"
    assert record["requestContext"]["approximateInvokeCount"] == 2
    assert record["requestPayload"] == {"do": "raise"}
    assert record["responsePayload"]["errorType"] == "ValueError"
    assert eventually(lambda: running.function("failing")["dead"] == 1, what="the dead letter")
    eventually(
        lambda: running.project.command("logs", "failing").stdout.count(f"REPORT RequestId: {request_id}") == 2,
        what="the log of both attempts",
    )


def test_the_log_tail_holds_the_invocations_own_lines(running: Running) -> None:
    answer = running.client().invoke(FunctionName="echo", LogType="Tail", Payload=b'{"do": "print", "lines": 3}')
    request_id = answer["ResponseMetadata"]["RequestId"]
    lines = base64.b64decode(answer["LogResult"]).decode().splitlines()
    assert lines[0] == f"START RequestId: {request_id} Version: $LATEST"
    assert lines[1:4] == ["line 0", "line 1", "line 2"]
    assert lines[4] == f"END RequestId: {request_id}"
    fields = lines[5].split("\t")
    assert fields[0] == f"REPORT RequestId: {request_id}"
    assert [f.split(":")[0] for f in fields[1:5]] == ["Duration", "Billed Duration", "Memory Size", "Max Memory Used"]
    assert fields[3] == "Memory Size: 256 MB"
    assert int(fields[4].split()[3]) > 0


def test_the_log_tail_is_the_last_4096_bytes(running: Running) -> None:
    answer = running.client().invoke(FunctionName="echo", LogType="Tail", Payload=b'{"do": "print", "lines": 5000}')
    tail = base64.b64decode(answer["LogResult"])
    assert len(tail) == 4096
    assert b"line 4999\n" in tail


def test_the_context_tells_what_lambda_tells(running: Running) -> None:
    context = base64.b64encode(json.dumps({"custom": {"k": "v"}, "client": {"app_title": "T"}}).encode()).decode()
    answer = running.client().invoke(FunctionName="echo", ClientContext=context, Payload=b'{"do": "context"}')
    seen = json.loads(answer["Payload"].read())
    assert seen["aws_request_id"] == answer["ResponseMetadata"]["RequestId"]
    assert seen["function_name"] == "echo"
    assert seen["function_version"] == "$LATEST"
    assert seen["invoked_function_arn"] == "arn:aws:lambda:us-east-1:000000000000:function:echo"
    assert seen["memory_limit_in_mb"] == "256"
    assert seen["log_group_name"] == "/aws/lambda/echo"
    assert "[$LATEST]" in seen["log_stream_name"]
    assert seen["client"] == {"k": "v"}
    assert seen["app"] == "T"
    assert 0 < seen["left"] <= 60_000


def test_an_exception_becomes_lambdas_error_document_without_our_frames(running: Running) -> None:
    document, error = running.invoke("echo", {"do": "raise"})
    assert error == "Unhandled"
    assert document["errorType"] == "ValueError"
    assert document["errorMessage"] == "no such luck"
    assert len(document["stackTrace"]) == 1
    assert "app.py" in document["stackTrace"][0]
    assert 'raise ValueError("no such luck")' in document["stackTrace"][0]


def test_a_timeout_kills_the_environment_and_the_next_request_is_served(running: Running) -> None:
    answer = running.client().invoke(FunctionName="brief", LogType="Tail", Payload=b'{"do": "sleep", "s": 30}')
    request_id = answer["ResponseMetadata"]["RequestId"]
    assert answer["FunctionError"] == "Unhandled"
    assert json.loads(answer["Payload"].read()) == {
        "errorType": "Sandbox.Timedout",
        "errorMessage": f"RequestId: {request_id} Error: Task timed out after 1.00 seconds",
    }
    log = base64.b64decode(answer["LogResult"]).decode()
    assert "Task timed out after 1.00 seconds" in log
    assert re.search(r"\tMax Memory Used: [1-9]\d* MB\t.*Status: timeout\t", log), log
    assert running.invoke("brief", 1) == (1, None)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"do": "exit", "status": 0}, "Runtime exited without providing a reason"),
        ({"do": "exit", "status": 7}, "Runtime exited with error: exit status 7"),
        ({"do": "sys.exit", "status": 2}, "Runtime exited with error: exit status 2"),
    ],
)
def test_an_exiting_handler_is_reported_as_on_lambda(running: Running, event: dict[str, Any], said: str) -> None:
    document, error = running.invoke("echo", event)
    assert error == "Unhandled"
    assert document["errorType"] == "Runtime.ExitError"
    assert document["errorMessage"].endswith(f"Error: {said}")
    assert document["errorMessage"].startswith("RequestId: ")


def test_a_response_that_is_not_json_is_a_marshal_error(running: Running) -> None:
    document, error = running.invoke("echo", {"do": "unserialisable"})
    assert error == "Unhandled"
    assert document["errorType"] == "Runtime.MarshalError"
    assert "Object of type object is not JSON serializable" in document["errorMessage"]


def test_a_response_of_6291556_bytes_passes_and_one_more_does_not(running: Running) -> None:
    answer, error = running.invoke("echo", {"do": "large", "bytes": 6_291_554})
    assert (len(answer), error) == (6_291_554, None)
    document, error = running.invoke("echo", {"do": "large", "bytes": 6_291_555})
    assert error == "Unhandled"
    assert document["errorType"] == "Function.ResponseSizeTooLarge"
    assert document["errorMessage"] == ("Response payload size exceeded maximum allowed payload size (6291556 bytes).")


@pytest.mark.parametrize(("kind", "limit"), [("RequestResponse", 6_291_556), ("Event", 1_048_576)])
def test_a_payload_over_the_limit_is_refused(running: Running, kind: str, limit: int) -> None:
    client = running.client()
    fits = b'"' + b"x" * (limit - 2) + b'"'
    assert client.invoke(FunctionName="echo", InvocationType=kind, Payload=fits)["StatusCode"] in (200, 202)
    with pytest.raises(ClientError) as error:
        client.invoke(FunctionName="echo", InvocationType=kind, Payload=fits + b" ")
    assert code_of(error) == ("RequestTooLargeException", 413)


@pytest.mark.parametrize("payload", [b"{", b"{'a': 1}", b"\xff", b"nul", b"1 2"])
def test_a_payload_that_is_not_json_is_refused(running: Running, payload: bytes) -> None:
    with pytest.raises(ClientError) as error:
        running.client().invoke(FunctionName="echo", Payload=payload)
    assert code_of(error) == ("InvalidRequestContentException", 400)


def test_an_unknown_function_is_not_found(running: Running) -> None:
    with pytest.raises(ClientError) as error:
        running.invoke("nobody")
    assert code_of(error) == ("ResourceNotFoundException", 404)
    assert error.value.response["Error"]["Message"] == (
        "Function not found: arn:aws:lambda:us-east-1:000000000000:function:nobody:$LATEST"
    )


def test_a_broken_client_context_is_refused(running: Running) -> None:
    with pytest.raises(ClientError) as error:
        running.invoke("echo", {}, ClientContext="bm8=")
    assert code_of(error) == ("InvalidRequestContentException", 400)


def test_reserved_concurrency_zero_always_throttles(running: Running) -> None:
    with pytest.raises(ClientError) as error:
        running.invoke("none", {})
    assert code_of(error) == ("TooManyRequestsException", 429)
    assert error.value.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"


def test_reserved_concurrency_one_throttles_the_second_at_once(running: Running, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(running.invoke, "one", {"do": "wait", "for": str(gate)})
        try:
            eventually(lambda: running.function("one")["environments"]["busy"] == 1, what="the first invocation")
            with pytest.raises(ClientError) as error:
                running.invoke("one", {})
        finally:
            gate.touch()
        assert first.result()[1] is None
    assert code_of(error) == ("TooManyRequestsException", 429)
    assert running.invoke("one", 1) == (1, None)


def test_the_aws_cli_invokes(running: Running, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    aws = Path(sys.executable).with_name("aws")
    done = subprocess.run(
        [
            str(aws),
            "lambda",
            "invoke",
            "--endpoint-url",
            running.url,
            "--region",
            "us-east-1",
            "--function-name",
            "echo",
            "--payload",
            '{"a": 1}',
            "--log-type",
            "Tail",
            str(answer),
        ],
        env={"PATH": "/usr/bin:/bin", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(answer.read_text()) == {"a": 1}
    assert json.loads(done.stdout)["StatusCode"] == 200
