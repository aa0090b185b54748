"""How many environments a function has: bursts, idle ones, provisioned ones, the machine's limit."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

from .conftest import DEADLINE_S, Project, eventually
from .handler_actions import CODE, together


def test_a_burst_starts_as_many_environments_as_are_missing(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        running.invoke("app", {})
        assert len({answer["pid"] for answer, _ in together(running, 8)}) == 8
        assert sum(starts["count"] for starts in running.function("app")["starts"].values()) == 8


def test_idle_environments_end_down_to_none(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.app]\nhandler = "app.handler"\nidle_timeout_s = 1\n')
    with project.up() as running:
        together(running, 3)
        eventually(
            lambda: running.function("app")["environments"] == {"idle": 0, "busy": 0, "starting": 0}, what="none"
        )
        assert running.invoke("app", {})[1] is None


def test_provisioned_environments_are_ready_before_the_first_request_and_replaced(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.app]\nhandler = "app.handler"\nprovisioned_concurrency = 2\nidle_timeout_s = 1\n')
    with project.up() as running:
        assert running.function("app")["environments"]["idle"] == 2
        answer, _ = running.invoke("app", {"do": "environ"})
        assert list(running.function("app")["invocations"]) == ["warm"]
        assert answer["variables"]["AWS_LAMBDA_INITIALIZATION_TYPE"] == "provisioned-concurrency"
        os.kill(answer["pid"], signal.SIGKILL)
        eventually(lambda: running.function("app")["environments"]["idle"] == 2, what="the replacement")


def test_the_machines_limit_queues_requests_and_then_throttles(project: Project) -> None:
    project.code(CODE)
    project.config(
        'max_environments = 2\nqueue_timeout_s = 1\nmax_waiting = 3\n[functions.app]\nhandler = "app.handler"\n'
    )
    gate = project.root / "gate"
    throttled = threading.Semaphore(0)
    with project.up() as running, ThreadPoolExecutor(12) as threads:
        client = running.client()

        def one(_: int) -> str:
            try:
                answer = client.invoke(FunctionName="app", Payload=json.dumps({"gate": str(gate)}))
            except client.exceptions.TooManyRequestsException:
                throttled.release()
                return "throttled"
            return str(answer.get("FunctionError"))

        asked = [threads.submit(one, number) for number in range(10)]
        # Invocations with an environment keep it until all others have been throttled.
        try:
            for _ in range(8):
                assert throttled.acquire(timeout=DEADLINE_S)
        finally:
            gate.touch()
        outcomes = [each.result() for each in asked]
    assert outcomes.count("None") == 2
    assert outcomes.count("throttled") == 8


def test_a_full_machine_ends_another_functions_idle_environment(project: Project) -> None:
    project.code(CODE)
    project.config(
        'max_environments = 1\n[functions.app]\nhandler = "app.handler"\n[functions.other]\nhandler = "app.handler"\n'
    )
    with project.up() as running:
        for _ in range(3):
            assert running.invoke("app", {})[1] is None
            assert running.invoke("other", {})[1] is None
        assert running.function("app")["environments"]["idle"] == 0
