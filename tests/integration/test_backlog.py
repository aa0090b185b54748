"""A backlog of events: when it is full, when one function floods the others, when the state file is from an older
version."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import Project, Running, eventually

CODE = """
import pathlib
import time

def work(event, context):
    while isinstance(event, dict) and "until" in event and not pathlib.Path(event["until"]).exists():
        time.sleep(0.01)
    return event

def waits(event, context):
    while not pathlib.Path(event["until"]).exists():
        time.sleep(0.01)
"""


def depth(running: Running, function: str) -> int:
    entry = running.status()["functions"][function]
    return int(entry["queued"]) + int(entry["leased"])


def invoke_later(running: Running, function: str, event: Any) -> int:
    payload = json.dumps(event).encode()
    answer = running.client().invoke(FunctionName=function, InvocationType="Event", Payload=payload)
    return int(answer["StatusCode"])


def test_a_full_backlog_is_told_and_takes_more_once_there_is_room(project: Project) -> None:
    project.code(CODE)
    project.config("""
        max_queued = 3

        [functions.waits]
        handler = "app.waits"
        timeout_s = 900

        [functions.work]
        handler = "app.work"
        on_success = "table:out"

        [buckets.uploads]
        notify = [{ function = "work" }]

        [tables.out]
    """)
    gate = project.root / "gate"
    with project.up() as running:
        for _ in range(3):
            assert invoke_later(running, "waits", {"until": str(gate)}) == 202
        with pytest.raises(ClientError) as refused:
            invoke_later(running, "work", {})
        assert refused.value.response["Error"]["Code"] == "TooManyRequestsException"
        assert "server.max_queued is 3" in refused.value.response["Error"]["Message"]
        assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"]
        # The bucket keeps the object. Its event is recorded when the queue has room.
        (project.root / "uploads" / "one.txt").write_text("1")
        eventually(lambda: any("too many events wait" in line for line in running.output))
        assert running.invoke("work", {"n": 1}) == ({"n": 1}, None)
        gate.touch()
        eventually(lambda: "one.txt" in json.dumps(project.rows("out")), what="the object's row")
        eventually(lambda: not depth(running, "waits") + depth(running, "work"), what="an empty backlog")
        assert invoke_later(running, "work", {}) == 202


def test_a_flooded_function_does_not_keep_another_from_running(project: Project) -> None:
    project.code(CODE)
    project.config("""
        max_environments = 2

        [functions.waits]
        handler = "app.waits"

        [functions.work]
        handler = "app.work"
        on_success = "table:out"

        [tables.out]
    """)
    gate = project.root / "gate"
    gate.touch()
    with project.up() as running:
        flooding = threading.Event()
        flooding.set()

        def flood() -> None:
            while flooding.is_set():
                invoke_later(running, "waits", {"until": str(gate)})

        threads = [threading.Thread(target=flood) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: depth(running, "waits"), what="the flood")
            assert running.invoke("work", 1) == (1, None)
            invoke_later(running, "work", {"n": 2})
            eventually(lambda: '"n": 2' in json.dumps(project.rows("out")), what="the other's row")
        finally:
            flooding.clear()
            for thread in threads:
                thread.join()
        eventually(lambda: not depth(running, "waits"), what="the end of the flood")


def test_events_that_a_throttled_function_does_not_take_wait_and_run_when_it_does(project: Project) -> None:
    project.code(CODE)
    project.config("""
        [functions.work]
        handler = "app.work"
        on_success = "table:out"
        reserved_concurrency = 1

        [tables.out]
    """)
    gate = project.root / "gate"
    with project.up() as running:
        holder = threading.Thread(target=running.invoke, args=("work", {"until": str(gate)}))
        holder.start()
        try:
            eventually(
                lambda: running.status()["functions"]["work"]["environments"].get("busy"),
                what="the one that holds the environment",
            )
            for number in range(20):
                assert invoke_later(running, "work", {"n": number}) == 202
            eventually(lambda: running.status()["functions"]["work"]["throttles"], what="a throttle")
            assert running.status()["functions"]["work"]["throttles"] < 20, "each event tries for itself"
            assert depth(running, "work") == 20
        finally:
            gate.touch()
            holder.join()
        eventually(lambda: len(project.rows("out")) == 20, what="all twenty rows")


def test_events_of_a_function_that_is_switched_off_are_dead_letters_at_once(project: Project) -> None:
    project.code(CODE)
    project.config("""
        [functions.work]
        handler = "app.work"
        on_failure = "table:failed"
        reserved_concurrency = 0

        [tables.failed]
    """)
    with project.up() as running:

        def runs_again() -> bool:
            try:
                return running.invoke("work", 1) == (1, None)
            except ClientError as error:
                assert error.response["Error"]["Code"] == "TooManyRequestsException"
                return False

        assert invoke_later(running, "work", {"n": 1}) == 202
        eventually(lambda: running.function("work")["dead"] == 1, what="the dead letter")
        [letter] = [json.loads(line) for line in project.command("dead", "list", "--json").stdout.splitlines()]
        assert (letter["condition"], letter["attempts"]) == ("ZeroReservedConcurrency", 0)
        [row] = project.command("table", "failed", "--json").stdout.splitlines()
        assert "ZeroReservedConcurrency" in row
        text = (project.root / "thawd.toml").read_text()
        (project.root / "thawd.toml").write_text(text.replace("reserved_concurrency = 0", ""))
        running.process.send_signal(1)
        eventually(runs_again, what="the function to run again")
        assert project.command("dead", "redrive", "--all").returncode == 0
        eventually(lambda: running.function("work")["dead"] == 0 and not depth(running, "work"), what="the redrive")
