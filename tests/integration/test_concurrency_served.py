"""Claims about functions with the option `concurrency`, served: thawed, shared by requests, replaced, killed."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually

CODE = """
import asyncio, os
import thawd
loop_of_the_first = None
running = 0

async def handler(event, context):
    global running, loop_of_the_first
    loop_of_the_first = loop_of_the_first or asyncio.get_running_loop()
    assert loop_of_the_first is asyncio.get_running_loop(), "primed on one loop, and then run on another"
    running += 1
    if event.get("began"):
        open(event["began"], "w").close()
    while event.get("gate") and not os.path.exists(event["gate"]):
        await asyncio.sleep(0.005)
    if event.get("poison") and context.aws_request_id:
        os._exit(9)
    if event.get("row"):
        await asyncio.to_thread(thawd.table("rows").put, event["row"], {"running": running})
    return {"n": event.get("n"), "pid": os.getpid(), "version": VERSION}
"""
CONFIG = """
[functions.f]
handler = "app.handler"
timeout_s = 60
concurrency = 16
prime = {n = 0}
reserved_concurrency = 2
maximum_retry_attempts = 2
[tables.rows]
"""


def code(project: Project, *, version: int) -> None:
    project.code(f"VERSION = {version}\n{CODE}")


@pytest.fixture
def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(40)


def test_requests_share_one_thawed_process_and_a_new_version_or_a_kill_mixes_nothing(
    project: Project, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    code(project, version=1)
    project.config(CONFIG)
    gates = [tmp_path / f"gate{number}" for number in range(3)]
    with project.up() as running:

        def ask(number: int, gate: Path) -> dict[str, object]:
            began = str(tmp_path / f"began{number}")
            return dict(running.invoke("f", {"n": number, "gate": str(gate), "began": began})[0])

        asked = [threads.submit(ask, number, gates[0]) for number in range(10)]
        eventually(lambda: len(list(tmp_path.glob("began*"))) == 10, what="the beginning of all")
        code(project, version=2)
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.invoke("f", {"n": 1})[0]["version"] == 2, what="the new version")
        gates[0].touch()
        answers = [each.result() for each in asked]
        assert [answer["n"] for answer in answers] == list(range(10))
        assert {answer["version"] for answer in answers} == {1}
        assert len({answer["pid"] for answer in answers}) == 1
        assert running.function("f")["invocations"]["thaw"]["count"] >= 1

        asked = [threads.submit(ask, number, gates[1]) for number in range(20)]
        pid = running.invoke("f", {"n": 0})[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        gates[1].touch()
        ended = [each.result() for each in asked]
        failed = [answer for answer in ended if "errorType" in answer]
        assert {answer["errorType"] for answer in failed} <= {"Runtime.ExitError"}
        good = [(number, answer) for number, answer in enumerate(ended) if answer not in failed]
        assert all(answer["n"] == number and answer["pid"] != pid for number, answer in good)
        assert running.invoke("f", {"n": 5})[0]["n"] == 5


def test_an_event_that_ends_the_process_takes_no_other_event_with_it_to_the_dead_letters(project: Project) -> None:
    code(project, version=1)
    project.config(CONFIG)
    with project.up() as running:
        client = running.client()
        for number in range(40):
            event = {"row": f"r{number}"} if number != 7 else {"poison": True}
            client.invoke(FunctionName="f", InvocationType="Event", Payload=json.dumps(event).encode())

        def rows() -> int:
            return len(project.command("table", "rows", "--json").stdout.splitlines())

        eventually(lambda: rows() == 39, what="39 rows")
        eventually(lambda: project.command("dead", "list", "--json").stdout.count("\n") == 1, what="the dead letter")
