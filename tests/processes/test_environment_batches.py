"""Claims about batches in `thawd.environments.environment`: log tails, and processes that break the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes.real_spawner import Platform, invocation, no_services, platform
from tests.unit.execution_fakes import claim, within
from thawd.environments.channels import Channels
from thawd.environments.child_processes import Children
from thawd.environments.environment import Environment
from thawd.invocation import LOG_TAIL_BYTES, Result, StartKind
from thawd.resources import Batch
from thawd.telemetry.logs.writer import FunctionLog, LogStream
from thawd.wire import frames

CODE = """
import sys
def handler(events, context):
    sys.stdout.write(events[0])
    return events
"""
GOOD = {"duration_ms": 1.0, "peak_kib": 1, "failed": False}


def result_frame(body: bytes, **head: Any) -> bytes:
    return frames.encode(frames.RESULT, {**GOOD, **head}, body)


def test_each_tail_has_its_own_platform_lines_and_all_that_was_printed(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, CODE, snapshot=False, batch=Batch(size=4)) as made:
            environment = await within(made.spawner.start(made.version))
            items = [invocation("no newline"), invocation("b"), invocation("c")]
            items[0].want_log_tail = items[2].want_log_tail = True
            results = await within(environment.invoke_batch(items, init_ms=None))
            assert [json.loads(result.payload) for result in results] == ["no newline", "b", "c"]
            assert results[1].log_tail == b""
            for item, result in ((items[0], results[0]), (items[2], results[2])):
                lines = result.log_tail.decode().splitlines()
                assert lines[0] == f"START RequestId: {item.request_id} Version: $LATEST"
                assert lines[1:3] == ["no newline", f"END RequestId: {item.request_id}"]
                assert lines[3].startswith(f"REPORT RequestId: {item.request_id}\t")
            (large,) = await within(environment.invoke_batch([_wanting_tail("x" * 9000)], init_ms=None))
            assert len(large.log_tail) == LOG_TAIL_BYTES
            environment.kill()
            log = made.log()
        assert log.count(b"no newline") == 1
        starts = [index for index, line in enumerate(log) if line.startswith(b"START")]
        assert starts[:3] == [starts[0], starts[0] + 1, starts[0] + 2]

    claim(work)


@pytest.mark.parametrize("batch", [None, Batch(size=4)])
def test_a_report_in_json_has_the_size_of_the_batch_if_the_handler_takes_lists(
    tmp_path: Path, batch: Batch | None
) -> None:
    async def work() -> None:
        code = "def handler(events, context): return events"
        async with platform(tmp_path, code, snapshot=False, batch=batch, log_format="JSON") as made:
            environment = await within(made.spawner.start(made.version))
            items = [invocation(number) for number in range(1 if batch is None else 3)]
            await within(environment.invoke_batch(items, init_ms=None))
            environment.kill()
            records = [json.loads(line) for line in made.log() if b'"platform.report"' in line]
        sizes = [record["record"]["metrics"].get("batchSize") for record in records]
        assert sizes == ([None] if batch is None else [3, 3, 3])

    claim(work)


def _wanting_tail(event: str) -> Any:
    one = invocation(event)
    one.want_log_tail = True
    return one


@pytest.mark.parametrize(
    ("data", "good"),
    [
        (result_frame(b"0") + result_frame(b"1", item=1), True),
        (result_frame(b"1", item=1) + result_frame(b"0"), False),
        (result_frame(b"0") + result_frame(b"0"), False),
        (result_frame(b"0"), False),  # and then the end
        (result_frame(b"0", item=-1), False),
        (result_frame(b"0", item="0"), False),
    ],
    ids=["in order", "out of order", "twice", "too few", "below 0", "not a number"],
)
def test_a_batch_has_all_its_answers_in_order_or_each_item_fails(tmp_path: Path, data: bytes, good: bool) -> None:
    async def work() -> None:
        results = await answers_to(tmp_path, data)
        if good:
            assert [result.payload for result in results] == [b"0", b"1"]
        assert [result.function_error for result in results] == [None if good else "Unhandled"] * 2

    claim(work)


async def answers_to(folder: Path, data: bytes) -> list[Result]:
    """The results of a batch of two in an environment whose process sends `data` and then ends."""
    version = Platform(folder, "", batch=Batch(size=2)).version
    stream = LogStream(FunctionLog(folder / "f.log", max_bytes=1 << 20), version="1", identifier="x")
    channels = Channels.open()
    theirs = socket.socket(fileno=os.dup(channels.process_ends[0]))
    environment = Environment(version, identifier="x", kind=StartKind.COLD, stream=stream, channels=channels)
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: ASYNC220
    process.returncode = 0
    channels.close_process_ends()
    children = Children()
    await environment.connect(no_services)
    environment.adopt(children.watch(process.pid))
    theirs.sendall(frames.encode(frames.READY, {"pid": 1, "init_ms": 1.0}))
    await within(environment.ready)
    running = asyncio.ensure_future(environment.invoke_batch([invocation(), invocation()], init_ms=None))
    await asyncio.sleep(0)
    theirs.sendall(data)
    theirs.close()
    results: list[Result] = await within(running)
    environment.kill()
    await within(environment.ended.wait())
    return results
