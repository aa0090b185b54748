"""Requests that enter at one machine of a cluster and run on another. The machines are servers on this machine."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.clusters import CODE, cluster, machines_of, until_alive
from tests.integration.conftest import Running, eventually

# One environment for each machine: a second request at the same time needs the other machine.
LIMITS = "reserved_concurrency = 2\nprovisioned_concurrency = 2\n"
FUNCTION = f'[functions.app]\nhandler = "app.handler"\n{LIMITS}'
FLOW = f'[functions.flow]\nhandler = "flow.handler"\n{LIMITS}'


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """Two machines, with one environment each."""
    with cluster(tmp_path_factory.mktemp("cluster"), "ab", FUNCTION + FLOW) as running:
        yield running


class Occupied:
    """A request that occupies the only environment of a machine until `release`."""

    def __init__(self, running: Running, gate: Path) -> None:
        self._gate = gate
        self._threads = ThreadPoolExecutor(1)
        self._answer = self._threads.submit(running.invoke, "app", {"gate": str(gate)})
        eventually(lambda: running.function("app")["environments"]["busy"] == 1, what="a busy environment")

    def release(self) -> Any:
        self._gate.touch()
        answer, error = self._answer.result(300)
        assert error is None
        return answer


@pytest.fixture
def occupied(both: dict[str, Running], tmp_path: Path) -> Iterator[Running]:
    """The machine ``a`` while its only environment is busy, and ``b`` has an idle one that ``a`` knows of."""
    request = Occupied(both["a"], tmp_path / "gate")
    eventually(lambda: machines_of(both["a"])["b"]["idle"] == 2, what="two idle environments on b")
    yield both["a"]
    assert request.release()["machine"] == "a"


def test_a_request_runs_where_it_enters_while_an_environment_is_idle_there(both: dict[str, Running]) -> None:
    for name, running in both.items():
        eventually(lambda running=running: running.function("app")["environments"]["idle"] == 1)
        assert running.invoke("app", {})[0]["machine"] == name


def test_a_request_is_forwarded_and_keeps_its_id_context_trace_and_log(occupied: Running) -> None:
    context = base64.b64encode(json.dumps({"custom": {"a": "b"}}).encode()).decode()
    answer = occupied.client().invoke(FunctionName="app", Payload="{}", ClientContext=context, LogType="Tail")
    body = json.loads(answer["Payload"].read())
    assert body["machine"] == "b"
    assert body["request_id"] == answer["ResponseMetadata"]["RequestId"]
    assert body["custom"] == {"a": "b"}
    assert answer["ExecutedVersion"] == "$LATEST"
    log = base64.b64decode(answer["LogResult"]).decode()
    assert "on b\n" in log
    assert f"START RequestId: {body['request_id']}" in log
    sent = answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-trace-id"]
    assert sent.partition(";")[0] == body["trace"].partition(";")[0]


def test_an_error_of_the_function_is_the_same_as_without_a_forward(occupied: Running) -> None:
    body, error = occupied.invoke("app", {"fail": "no such flower"})
    assert error == "Unhandled"
    assert (body["errorType"], body["errorMessage"]) == ("ValueError", "no such flower")


def test_a_large_payload_is_forwarded(occupied: Running) -> None:
    body, error = occupied.invoke("app", {"data": "x" * 6_000_000})
    assert error is None
    assert (body["machine"], body["bytes"]) == ("b", 6_000_000)


def test_a_limit_of_the_cluster_is_never_exceeded_and_then_throttles(
    both: dict[str, Running], occupied: Running, tmp_path: Path
) -> None:
    gate = tmp_path / "other"
    other = Occupied(both["b"], gate)
    for running in both.values():
        with pytest.raises(ClientError) as caught:
            running.invoke("app", {})
        assert caught.value.response["Error"]["Code"] == "TooManyRequestsException"
        assert caught.value.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
    assert other.release()["machine"] == "b"


def test_a_streamed_answer_comes_part_by_part_from_the_other_machine(both: dict[str, Running], tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def stream() -> Iterator[bytes]:
        payload = json.dumps({"gate": str(gate)})
        answer = both["a"].client().invoke_with_response_stream(FunctionName="flow", Payload=payload)
        assert answer["ExecutedVersion"] == "$LATEST"
        return (part["PayloadChunk"]["Payload"] for part in answer["EventStream"] if "PayloadChunk" in part)

    eventually(lambda: both["a"].function("flow")["environments"]["idle"] == 1)
    here = stream()
    assert next(here) == b"a"
    eventually(lambda: both["a"].function("flow")["environments"]["idle"] == 0)
    there = stream()
    assert next(there) == b"b"  # while the handler still waits
    gate.touch()
    rest = b"".join(there)
    assert rest == bytes(range(256)) * 40_000
    assert b"".join(here) == rest


def test_an_answer_that_is_not_streamed_is_the_same_through_a_stream(occupied: Running) -> None:
    answer = occupied.client().invoke_with_response_stream(FunctionName="app", Payload="{}")
    parts = [event for event in answer["EventStream"] if "PayloadChunk" in event]
    assert json.loads(b"".join(part["PayloadChunk"]["Payload"] for part in parts))["machine"] == "b"


def test_the_status_counts_what_was_forwarded(both: dict[str, Running], occupied: Running) -> None:
    occupied.invoke("app", {})
    status = occupied.status()["cluster"]
    assert status["name"] == "a"
    assert status["forwarded"] > 0
    assert status["lost"] == 0
    assert both["b"].status()["cluster"]["accepted"] == status["forwarded"]


def test_the_command_shows_the_machines(both: dict[str, Running], occupied: Running) -> None:
    occupied.invoke("app", {})
    shown = both["a"].project.command("cluster", "status")
    assert shown.returncode == 0, shown.stderr
    assert "alive (this machine)" in shown.stdout
    assert shown.stdout.count("127.0.0.1:") == 2
    assert f"a: {occupied.status()['cluster']['forwarded']} forwarded, 0 run for others" in shown.stdout


def test_a_machine_that_dies_in_the_middle_gives_an_error_and_no_second_run(tmp_path: Path) -> None:
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    with cluster(tmp_path, "ab", FUNCTION) as both, ThreadPoolExecutor(1) as threads:
        request = Occupied(both["a"], gate)
        eventually(lambda: machines_of(both["a"])["b"]["idle"] == 1)
        lost = threads.submit(both["a"].invoke, "app", {"file": str(runs), "gate": str(tmp_path / "never")})
        eventually(lambda: runs.exists() and runs.read_text(), what="the run on b")
        both["b"].process.send_signal(signal.SIGKILL)
        with pytest.raises(ClientError) as caught:
            lost.result(300)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
        assert caught.value.response["Error"]["Code"] == "ServiceException"
        assert "it is unknown whether the function has run" in caught.value.response["Error"]["Message"]
        assert request.release()["machine"] == "a"
        until_alive(both["a"], "a")
        assert both["a"].invoke("app", {})[0]["machine"] == "a"
        assert len(runs.read_text().splitlines()) == 1
        assert both["a"].status()["cluster"]["lost"] == 1


def test_as_many_requests_as_the_limit_run_at_the_same_time_while_environments_start(tmp_path: Path) -> None:
    """None of them is throttled, although all enter at one machine, whose share is half of the limit."""
    config = '[functions.app]\nhandler = "app.handler"\nreserved_concurrency = 6\n'
    with cluster(tmp_path, "ab", config) as both, ThreadPoolExecutor(6) as threads:
        gate = tmp_path / "gate"
        asked = [threads.submit(both["a"].invoke, "app", {"gate": str(gate)}) for _ in range(6)]
        for running in both.values():
            eventually(
                lambda running=running: running.function("app")["environments"]["busy"] == 3 or asked[0].done(),
                what="three requests on each machine",
            )
        gate.touch()
        answers = [each.result(300) for each in asked]
        assert sorted(body["machine"] for body, _ in answers) == [*"aaabbb"]


def test_machines_with_different_code_forward_nothing_to_each_other(tmp_path: Path) -> None:
    with cluster(tmp_path, "ab", FUNCTION) as both:
        project = both["b"].project
        project.code(CODE + "# another version\n")
        both["b"].process.send_signal(signal.SIGHUP)
        both["b"].until_said("configuration reloaded")
        request = Occupied(both["a"], tmp_path / "gate")
        with pytest.raises(ClientError) as caught:
            both["a"].invoke("app", {})
        assert caught.value.response["Error"]["Code"] == "TooManyRequestsException"
        both["a"].until_said("thawd: b has another version of app")
        request.release()


def test_a_machine_that_stops_finishes_what_it_runs_for_others_and_takes_nothing_new(tmp_path: Path) -> None:
    gate = tmp_path / "b-gate"
    with cluster(tmp_path, "ab", FUNCTION) as both, ThreadPoolExecutor(1) as threads:
        request = Occupied(both["a"], tmp_path / "gate")
        eventually(lambda: machines_of(both["a"])["b"]["idle"] == 1)
        forwarded = threads.submit(both["a"].invoke, "app", {"gate": str(gate)})
        eventually(lambda: both["b"].function("app")["environments"]["busy"] == 1)
        both["b"].process.send_signal(signal.SIGTERM)
        eventually(lambda: machines_of(both["a"])["b"]["draining"], what="that b drains")
        gate.touch()
        assert forwarded.result(300)[0]["machine"] == "b"
        request.release()


def test_a_request_that_waits_runs_on_the_first_machine_with_an_environment(tmp_path: Path) -> None:
    config = """
        [functions.app]
        handler = "app.handler"
        timeout_s = 600
        """
    first, second = tmp_path / "first", tmp_path / "second"
    server = "max_environments = 1\n"
    with cluster(tmp_path, "ab", config, server=server) as both, ThreadPoolExecutor(4) as threads:
        a = both["a"]

        def send(gate: Path) -> Any:
            return threads.submit(a.invoke, "app", {"gate": str(gate)})

        def state() -> tuple[int, int, int, int]:
            here, there = a.status(), both["b"].status()
            environments = [each["functions"]["app"]["environments"]["busy"] for each in (here, there)]
            return (*environments, here["functions"]["app"]["waiting"], here["cluster"]["held"])  # type: ignore[return-value]

        # Given two machines whose only environments are busy, a request in the line of the first one, and one more
        try:
            eventually(lambda: machines_of(a)["b"]["free_environments"] == 1)
            send(first)
            eventually(lambda: sum(state()[:2]) == 1, what="a request that runs")
            # It runs on the other machine if only that one had an image when the request came.
            here, there = (first, second) if state()[0] else (second, first)
            send(second)
            eventually(lambda: state()[:2] == (1, 1), what="a request that runs on the other machine")
            in_line = send(here)
            eventually(lambda: state() == (1, 1, 1, 0), what="a request in line")
            held = send(here)
            eventually(lambda: state() == (1, 1, 1, 1), what="a request that is held")
            # When the second machine becomes free, the last one runs there
            there.touch()
            eventually(lambda: state() == (1, 1, 1, 0), what="that the request runs on the other machine")
        finally:
            first.touch()
            second.touch()
        assert held.result(300)[0]["machine"] == "b"
        assert in_line.result(300)[0]["machine"] == "a"
