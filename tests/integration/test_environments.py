"""Environments under load and kills: an environment's fault never affects another request, however environments
start."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .conftest import Project, Running, eventually, processes_of
from .handler_actions import CODE, FORKED, together


@pytest.fixture(scope="module", params=["thaw", "fork", "cold"])
def kind(request: pytest.FixtureRequest) -> str:
    """How environments start. Every test that takes `running` runs with each kind."""
    return str(request.param)


@pytest.fixture(scope="module")
def running(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("environments"))
    project.code(CODE)
    project.config(
        f"""
        [functions.app]
        handler = "app.handler"
        timeout_s = 20
        memory_mb = 128
        snapshot = {str(kind != "cold").lower()}
        environment = {{ MINE = "yes" }}
        """
    )
    with project.up(environ=FORKED if kind == "fork" else {}) as server:
        assert server.function("app")["start"] == kind
        yield server


def test_one_environment_serves_one_invocation_at_a_time_and_keeps_its_state(running: Running) -> None:
    first, _ = running.invoke("app", {})
    second, _ = running.invoke("app", {})
    assert second["pid"] == first["pid"]
    assert second["counter"] == first["counter"] + 1
    pids = {answer["pid"] for answer, _ in together(running, 4)}
    assert len(pids) == 4


def test_the_environment_used_last_is_used_first(running: Running) -> None:
    together(running, 3)
    pids = {running.invoke("app", {})[0]["pid"] for _ in range(5)}
    assert len(pids) == 1


def test_functions_see_lambdas_variables_and_not_the_servers(running: Running, kind: str) -> None:
    seen = running.invoke("app", {"do": "environ"})[0]["variables"]
    assert seen["MINE"] == "yes"
    assert seen["AWS_LAMBDA_FUNCTION_NAME"] == "app"
    assert seen["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "128"
    assert seen["_HANDLER"] == "app.handler"
    assert seen["TZ"] == ":UTC"
    assert seen["AWS_LAMBDA_INITIALIZATION_TYPE"] == ("snap-start" if kind == "thaw" else "on-demand")
    assert "PYTEST_CURRENT_TEST" not in seen


@pytest.mark.parametrize("action", ["memory", "child memory"])
def test_memory_over_the_limit_is_killed(running: Running, action: str) -> None:
    answer, error = running.invoke("app", {"do": action, "mib": 400, "s": 10})
    # The kernel may kill only a child that exceeds the limit, as on Lambda; then the handler continues.
    if action == "memory" or error is not None:
        assert error == "Unhandled"
        assert answer["errorType"] == "Runtime.ExitError"
        assert answer["errorMessage"].endswith("Runtime exited with error: signal: killed")
    assert running.invoke("app", {})[1] is None


def test_a_segmentation_fault_is_told_and_harms_nobody(running: Running) -> None:
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(running.invoke, "app", {"do": "sleep", "s": 1})
        answer, error = running.invoke("app", {"do": "segfault"})
        assert good.result()[1] is None
    assert error == "Unhandled"
    assert answer["errorMessage"].endswith("signal: segmentation fault")


def test_a_handler_that_forks_and_returns_twice_answers_once(running: Running) -> None:
    for _ in range(3):
        assert running.invoke("app", {"do": "fork and return"})[1] is None
    assert running.invoke("app", {})[1] is None


def test_a_handler_that_closes_or_writes_to_our_descriptors_ends_only_itself(running: Running) -> None:
    for action in ("close", "garbage"):
        _, error = running.invoke("app", {"do": action})
        assert error in (None, "Unhandled")
        assert eventually(lambda: running.invoke("app", {})[1] is None, what="a good answer")


def test_what_a_handler_leaves_running_ends_with_its_environment(running: Running) -> None:
    for action in ("fork and stay", "daemon"):
        answer, error = running.invoke("app", {"do": action})
        assert error is None, answer
        os.kill(answer["pid"], signal.SIGKILL)
        # Until the platform knows that the process has ended, it may lease the environment again.
        eventually(
            lambda pid=answer["pid"]: pid not in running.function("app")["processes"], what="the end of the environment"
        )
    # A template, if there is one, is the only process left that is not an idle environment.
    eventually(
        lambda: len(processes_of(running.project.data)) <= 1 + sum(running.function("app")["environments"].values()),
        what="the end of the strays",
    )


def test_killing_environments_and_the_template_under_load_answers_every_request(running: Running) -> None:
    """When SIGKILL ends environments and the template under load, each answer is correct or is the expected error."""
    stop = threading.Event()
    answers: list[tuple[Any, str | None]] = []

    def load() -> None:
        client = running.client()
        while not stop.is_set():
            answer = client.invoke(FunctionName="app", Payload=b'{"do": "sleep", "s": 0.01}')
            answers.append((json.loads(answer["Payload"].read()), answer.get("FunctionError")))

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    kills = 0
    while kills < 20:
        for pid in processes_of(running.project.data)[:2]:
            try:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
        seen = len(answers)
        eventually(lambda seen=seen: len(answers) > seen + 20, what="more answers")
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    wrong = [
        answer
        for answer, error in answers
        if error is not None and not answer["errorMessage"].endswith("signal: killed")
    ]
    assert wrong == []
    assert sum(error is None for _, error in answers) > len(answers) / 2
    assert running.invoke("app", {})[1] is None
