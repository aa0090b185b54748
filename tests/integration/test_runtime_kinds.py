"""A function sees the same behaviour in every kind of runtime: the same tests run for each kind.

The kinds are: thawd's own Python runtime (frames over a socketpair); `awslambdaric`, AWS's client, unmodified; Node
with thawd's client; a shell with curl. The last three use the Runtime API over HTTP.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import Project, Running, eventually

PROGRAMS = Path(__file__).parent / "runtime_kinds"
MAX_BYTES = 6_291_556
KINDS = {"own": "python3.11", "awslambdaric": "provided.al2023", "node": "nodejs20.x", "shell": "provided.al2"}
HANDLERS = {"own": "app.handler", "awslambdaric": "app.handler", "node": "index.handler", "shell": "any.text"}
ERROR_KEYS = {"node": "trace", "own": "stackTrace", "awslambdaric": "stackTrace"}
VARIANTS = {
    "": "",
    "-short": "timeout_s = 4\n",
    "-init": 'environment = { FAIL = "init" }\n',
    "-exit": 'environment = { FAIL = "exit" }\n',
}

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on PATH")


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=needs_node if kind == "node" else ()) for kind in KINDS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the function of one kind: once normally, once with a short time limit, once with two failing init
    phases."""
    root = tmp_path_factory.mktemp(kind)
    project = Project(root)
    for name in ("app.py", "index.mjs"):
        shutil.copy(PROGRAMS / name, root / name)
    if kind == "shell":
        shutil.copy(PROGRAMS / "bootstrap.sh", root / "bootstrap")
    else:
        (root / "bootstrap").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m awslambdaric "$_HANDLER"\n')
    (root / "bootstrap").chmod(0o755)
    project.config(
        "".join(
            f'[functions.{kind}{variant}]\nhandler = "{HANDLERS[kind]}"\nruntime = "{KINDS[kind]}"\n'
            f"memory_mb = 256\n{options or environment}"
            for environment in ('environment = { COLOUR = "blue" }\n',)
            for variant, options in VARIANTS.items()
        )
        + f'[runtimes]\n"python3.11" = "{sys.executable}"\n'
        + (f'"nodejs20.x" = "{shutil.which("node")}"\n' if kind == "node" else "")
    )
    with project.up() as running:
        yield running


def test_the_event_goes_in_and_the_answer_comes_out(running: Running, kind: str) -> None:
    event = {"text": 'grün ☃ "quoted" \\ and\nmore', "number": 1.5, "list": [None, True, {}]}

    answer, error = running.invoke(kind, event)

    assert error is None
    assert answer["event"] == event


def test_an_environment_keeps_its_state_for_the_next_invocation(running: Running, kind: str) -> None:
    before = running.invoke(kind, {})[0]["counter"]

    assert running.invoke(kind, {})[0]["counter"] == before + 1


def test_invocations_at_once_have_environments_of_their_own(running: Running, kind: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda number: running.invoke(kind, {"number": number}), range(12)))

    assert sorted(answer["event"]["number"] for answer, _ in answers) == list(range(12))
    assert {error for _, error in answers} == {None}
    # A late environment would be the one used last, so it would serve the next test instead of the one that test
    # expects.
    eventually(lambda: not running.function(kind)["environments"]["starting"], what="the end of all starts")


def test_an_error_of_the_handler_is_told_and_the_environment_goes_on(running: Running, kind: str) -> None:
    before = running.invoke(kind, {})[0]["counter"]

    document, error = running.invoke(kind, {"do": "error"})

    assert error == "Unhandled"
    assert (document["errorType"], document["errorMessage"]) == ("ValueError", "boom")
    if kind in ERROR_KEYS:
        assert isinstance(document[ERROR_KEYS[kind]], list)
    assert running.invoke(kind, {})[0]["counter"] == before + 2


def test_a_handler_that_takes_too_long_is_ended_and_replaced(running: Running, kind: str) -> None:
    name = f"{kind}-short"

    document, error = running.invoke(name, {"do": "sleep"})

    assert error == "Unhandled"
    assert document["errorType"] == "Sandbox.Timedout"
    assert re.fullmatch(r"RequestId: [0-9a-f-]{36} Error: Task timed out after 4.00 seconds", document["errorMessage"])
    assert running.invoke(name, {})[0]["counter"] == 1


def test_a_program_that_ends_under_an_invocation_fails_it_and_is_replaced(running: Running, kind: str) -> None:
    document, error = running.invoke(kind, {"do": "exit"})

    assert error == "Unhandled"
    assert document["errorType"] == "Runtime.ExitError"
    expected = r"RequestId: [0-9a-f-]{36} Error: Runtime exited with error: exit status 7"
    assert re.fullmatch(expected, document["errorMessage"])
    assert running.invoke(kind, {})[1] is None


def test_the_largest_answer_passes_and_a_larger_one_is_an_error(running: Running, kind: str) -> None:
    largest, error = running.invoke(kind, {"do": "large", "bytes": MAX_BYTES - 2})  # the size without the quotes

    assert error is None
    assert len(largest) == MAX_BYTES - 2
    document, error = running.invoke(kind, {"do": "large", "bytes": MAX_BYTES - 1})
    assert error == "Unhandled"
    assert document["errorType"] == "Function.ResponseSizeTooLarge"
    assert f"({MAX_BYTES} bytes)" in document["errorMessage"]
    assert running.invoke(kind, {})[1] is None


def test_an_init_phase_that_fails_is_told_with_its_error(running: Running, kind: str) -> None:
    document, error = running.invoke(f"{kind}-init", {})

    assert error == "Unhandled"
    assert (document["errorType"], document["errorMessage"]) == ("ValueError", "no luck")


def test_a_program_that_ends_while_it_initialises_is_told_with_its_status(running: Running, kind: str) -> None:
    document, error = running.invoke(f"{kind}-exit", {})

    assert error == "Unhandled"
    assert document["errorType"] == "Runtime.ExitError"
    assert document["errorMessage"].endswith("Runtime exited with error: exit status 7")


def test_the_environment_variables_are_lambdas(running: Running, kind: str) -> None:
    answer, _ = running.invoke(kind, {"do": "environ"})

    variables = dict(pair.split("=", 1) for pair in answer["variables"])
    assert variables["AWS_LAMBDA_FUNCTION_NAME"] == kind
    assert variables["AWS_LAMBDA_FUNCTION_VERSION"] == "$LATEST"
    assert variables["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "256"
    assert variables["AWS_LAMBDA_LOG_GROUP_NAME"] == f"/aws/lambda/{kind}"
    assert re.fullmatch(r"\d{4}/\d\d/\d\d/\[\$LATEST\][0-9a-f]{32}", variables["AWS_LAMBDA_LOG_STREAM_NAME"])
    assert variables["AWS_REGION"] == variables["AWS_DEFAULT_REGION"] == "us-east-1"
    assert variables["_HANDLER"] == HANDLERS[kind]
    assert variables["TZ"] == ":UTC"
    assert variables["COLOUR"] == "blue"
    assert answer["cwd"] == variables["LAMBDA_TASK_ROOT"]
    assert Path(variables["LAMBDA_RUNTIME_DIR"]).is_dir()
    assert ("AWS_LAMBDA_RUNTIME_API" in variables) == (kind != "own")
    expected = {"own": "AWS_Lambda_python3.11", "node": "AWS_Lambda_nodejs20.x"}
    # awslambdaric sets it itself.
    if kind != "awslambdaric":
        assert variables.get("AWS_EXECUTION_ENV") == expected.get(kind)
    assert variables["AWS_LAMBDA_INITIALIZATION_TYPE"] == ("on-demand" if kind == "node" else "snap-start")


def test_the_log_tail_holds_what_was_printed_between_lambdas_lines(running: Running, kind: str) -> None:
    answer = running.client().invoke(FunctionName=kind, Payload=json.dumps({"do": "print"}), LogType="Tail")

    lines = base64.b64decode(answer["LogResult"]).decode().splitlines()
    identifier = answer["ResponseMetadata"]["RequestId"]
    start, *printed, end, report = lines
    assert start == f"START RequestId: {identifier} Version: $LATEST"
    assert [line for line in printed if "a line from the handler" in line]
    assert end == f"END RequestId: {identifier}"
    figures = re.fullmatch(
        rf"REPORT RequestId: {identifier}\tDuration: ([\d.]+) ms\tBilled Duration: (\d+) ms\tMemory Size: 256 MB\t"
        r"Max Memory Used: (\d+) MB\t(Init Duration: [\d.]+ ms\t)?",
        report,
    )
    assert figures
    assert float(figures[1]) > 0
    assert int(figures[3]) > 0


def test_the_context_tells_of_the_invocation(running: Running, kind: str) -> None:
    custom = {"custom": {"key": 'wert ü ☃\n"x"'}}
    encoded = base64.b64encode(json.dumps(custom, indent=1, ensure_ascii=False).encode()).decode()

    answer = running.client().invoke(FunctionName=kind, Payload='{"do": "context"}', ClientContext=encoded)

    context = json.loads(answer["Payload"].read())
    assert context["id"] == answer["ResponseMetadata"]["RequestId"]
    assert context["arn"].endswith(f":function:{kind}")
    assert 20_000 < context["left_ms"] <= 30_000
    assert context["client"] == custom


def test_the_trace_header_reaches_the_handler(running: Running, kind: str) -> None:
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    url = f"{running.url}/2015-03-31/functions/{kind}/invocations"

    request = urllib.request.Request(url, b'{"do": "context"}', {"X-Amzn-Trace-Id": trace})
    with urllib.request.urlopen(request, timeout=60) as answer:
        seen = json.loads(answer.read())["trace"]
    assert re.fullmatch(trace + ";Lineage=1:[0-9a-f]{8}:0", seen)


def test_asynchronous_events_run_too(running: Running, kind: str) -> None:
    before = running.invoke(kind, {})[0]["counter"]

    running.client().invoke(FunctionName=kind, InvocationType="Event", Payload='{"do": "print"}')

    eventually(lambda: running.invoke(kind, {})[0]["counter"] > before + 1, what="the asynchronous invocation")


def test_the_status_tells_how_environments_start_and_why(running: Running, kind: str) -> None:
    running.invoke(kind, {})

    status: dict[str, Any] = running.function(kind)

    assert status["state"] == "Active"
    if kind == "own":
        assert status["start"] == "thaw"
    else:
        assert status["start"] == "cold"
        assert "the function runs a program over the Runtime API" in status["start_reason"]
