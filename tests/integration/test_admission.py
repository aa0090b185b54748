"""A server on one core: computing requests run one after another, sleeping ones at the same time."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.conftest import Project, Running, eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processor time is not reported here")

CODE = """
import os
import time
def compute(event, context):
    end = time.process_time() + event.get("s", 0.05)
    while time.process_time() < end or ("gate" in event and not os.path.exists(event["gate"])):
        pass
    return os.getpid()
def wait(event, context):
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    return os.getpid()
"""
CONFIG = """
[server]
port = 0
max_environments = 32
{server}
[functions.compute]
handler = "app.compute"
[functions.wait]
handler = "app.wait"
"""


@contextlib.contextmanager
def on_one_core(project: Project, server: str = "") -> Iterator[Running]:
    project.code(CODE)
    (project.root / "thawd.toml").write_text(CONFIG.format(server=server))
    core = min(os.sched_getaffinity(0))
    with project.up(preexec_fn=lambda: os.sched_setaffinity(0, {core})) as running:
        yield running


def pids(answers: list[tuple[Any, str | None]]) -> list[int]:
    assert [error for _, error in answers] == [None] * len(answers)
    return [pid for pid, _ in answers]


def at_once(running: Running, function: str, count: int, event: dict[str, Any]) -> list[tuple[Any, str | None]]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: running.invoke(function, event), range(count)))


def test_requests_that_compute_wait_for_the_core_and_those_that_sleep_do_not(project: Project) -> None:
    with on_one_core(project) as running:
        running.invoke("compute", {})
        assert len(set(pids(at_once(running, "compute", 16, {})))) <= 2
        assert running.function("compute")["cores_each"] > 0.8
        gate = project.root / "gate"
        assert len(set(pids(running.invoke_at_once("wait", 16, {}, gate=gate)))) == 16
        assert running.function("wait")["cores_each"] < 0.5
        assert running.status()["admission"] == {"mode": "cores", "cores": 1.0, "load": 0.0, "waiting": 0}
        shown = project.command("status").stdout
        assert "admission by cores: 0.0 of 1 core in use" in shown


def test_an_environment_that_is_killed_while_others_wait_for_its_core_costs_its_own_request_alone(
    project: Project,
) -> None:
    with on_one_core(project) as running, ThreadPoolExecutor(8) as threads:
        running.invoke("compute", {})
        long = threads.submit(running.invoke, "compute", {"s": 3600})
        eventually(lambda: running.function("compute")["environments"]["busy"] == 1, what="the long computation")
        others = [threads.submit(running.invoke, "compute", {}) for _ in range(4)]
        eventually(lambda: running.function("compute")["waiting"] == 4, what="requests in line")
        found: list[int] = []

        def is_known() -> bool:
            """Whether one process computes. Another one may run for a moment."""
            found[:] = [pid for pid in running_environments(running) if is_computing(pid)]
            return len(found) == 1

        eventually(is_known, what="the process of the long computation")
        os.kill(found[0], signal.SIGKILL)
        assert long.result()[1] == "Unhandled"
        assert [other.result()[1] for other in others] == [None] * 4
        assert running.status()["admission"]["load"] == 0.0


def running_environments(running: Running) -> list[int]:
    from tests.integration.conftest import processes_of

    return processes_of(running.project.root)


def is_computing(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "R"


def test_all_lets_every_request_begin(project: Project) -> None:
    with on_one_core(project, 'admission = "all"') as running:
        assert len(set(pids(running.invoke_at_once("compute", 8, {}, gate=project.root / "gate")))) == 8
        assert running.status()["admission"] == {"mode": "all"}
        assert running.function("compute")["cores_each"] is None
        assert "admission" not in project.command("status").stdout
