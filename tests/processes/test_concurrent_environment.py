"""`thawd.environments.concurrent_environment`: time limits, log tails, processes that end or break the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes.real_spawner import Platform, invocation, no_services, platform
from tests.unit.execution_fakes import claim, until, within
from thawd.environments.channels import Channels
from thawd.environments.child_processes import Children
from thawd.environments.concurrent_environment import ConcurrentEnvironment
from thawd.invocation import Result, StartKind
from thawd.telemetry.logs.writer import FunctionLog, LogStream
from thawd.wire import frames

CODE = """
import asyncio
async def handler(event, context):
    print("printed by", event)
    await asyncio.sleep(600 if event == "slow" else 0.01)
    return event
"""
GOOD = {"duration_ms": 1.0, "peak_kib": 1, "failed": False}


@pytest.mark.parametrize("snapshot", [False, True])
def test_each_invocation_has_its_own_answer_lines_and_tail_and_a_time_out_is_its_own(
    tmp_path: Path, snapshot: bool
) -> None:
    async def work() -> None:
        async with platform(tmp_path, CODE, snapshot=snapshot, concurrency=8, timeout_s=1) as made:
            if snapshot:
                await within(made.spawner.prepare(made.version))
            environment = await within(made.spawner.start(made.version))
            assert isinstance(environment, ConcurrentEnvironment)
            items = [invocation(event) for event in ("a", "b", "slow", "c")]
            for item in items:
                item.want_log_tail = True
            results = await within(asyncio.gather(*(environment.invoke(each, init_ms=None) for each in items)))
            assert [json.loads(results[index].payload) for index in (0, 1, 3)] == ["a", "b", "c"]
            assert json.loads(results[2].payload)["errorType"] == "Sandbox.Timedout"
            assert results[2].duration_ms == 1000
            for item, result in zip(items, results, strict=True):
                tail = result.log_tail.decode()
                for word in ("START", "END", "REPORT"):
                    assert f"{word} RequestId: {item.request_id}" in tail
                assert "printed by slow\n" in tail
            assert environment.dying, "it gets no further invocations"
            assert not environment.ended.is_set()
            assert environment.busy_since is None
            environment.kill()
            await within(environment.ended.wait())

    claim(work)


class Scripted:
    """An environment whose process is the test."""

    def __init__(self, environment: ConcurrentEnvironment, theirs: socket.socket) -> None:
        self.environment = environment
        self.theirs = theirs
        self.decoder = frames.Decoder()

    def run(self, number: int) -> list[asyncio.Future[Result]]:
        return [asyncio.ensure_future(self.environment.invoke(invocation(), init_ms=None)) for _ in range(number)]

    def answer(self, number: Any, body: bytes) -> None:
        self.theirs.sendall(frames.encode(frames.RESULT, {**GOOD, "number": number}, body))

    async def sent(self) -> frames.Frame:
        """The next frame from the platform."""
        while (frame := self.decoder.take()) is None:
            self.decoder.feed(await within(asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16)))
        return frame


@asynccontextmanager
async def scripted(folder: Path, *, closes: bool = False, **function: Any) -> AsyncIterator[Scripted]:
    version = Platform(folder, "", concurrency=8, **function).version
    stream = LogStream(FunctionLog(folder / "f.log", max_bytes=1 << 20), version="1", identifier="x")
    channels = Channels.open()
    theirs = socket.socket(fileno=os.dup(channels.process_ends[0]))
    theirs.setblocking(False)
    environment = ConcurrentEnvironment(version, identifier="x", kind=StartKind.COLD, stream=stream, channels=channels)
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: ASYNC220
    process.returncode = 0
    channels.close_process_ends()
    await environment.connect(no_services)
    environment.adopt(Children().watch(process.pid))
    theirs.sendall(frames.encode(frames.READY, {"pid": 1, "init_ms": 1.0, "closes": closes}))
    await within(environment.ready)
    environment.mark_ready(init_ms=1.0)
    try:
        yield Scripted(environment, theirs)
    finally:
        environment.kill()
        await within(environment.ended.wait())
        theirs.close()


def test_answers_come_in_any_order_and_a_late_one_is_nobodys(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path, timeout_s=60) as made:
            first, second, given_up = made.run(3)
            numbers = [(await made.sent()).head["number"] for _ in range(3)]
            given_up.cancel()
            cancel = await made.sent()
            assert (cancel.kind, cancel.head["number"]) == (frames.CANCEL, numbers[2])
            for number in (numbers[2], numbers[1], numbers[1], numbers[0]):
                made.answer(number, str(number).encode())
            assert (await within(first)).payload == str(numbers[0]).encode()
            assert (await within(second)).payload == str(numbers[1]).encode()
            assert made.environment.dying
            assert not made.environment.ended.is_set()

    claim(work)


@pytest.mark.parametrize("number", [2, -1, "0", None, 1 << 70])
def test_an_answer_that_no_invocation_waits_for_ends_the_environment(tmp_path: Path, number: Any) -> None:
    async def work() -> None:
        async with scripted(tmp_path) as made:
            running = made.run(2)
            await until(lambda: made.environment.served == 2)
            made.answer(number, b"1")
            results = await within(asyncio.gather(*running))
            assert [result.function_error for result in results] == ["Unhandled"] * 2

    claim(work)


def test_if_the_process_ends_all_its_invocations_fail_and_later_ones_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path) as made:
            running = made.run(3)
            await until(lambda: made.environment.served == 3)
            made.environment.kill()
            results = await within(asyncio.gather(*running))
            assert {json.loads(result.payload)["errorType"] for result in results} == {"Runtime.ExitError"}
            (late,) = await within(asyncio.gather(*made.run(1)))
            assert json.loads(late.payload)["errorType"] == "Runtime.ExitError"
            assert made.environment.busy_since is None

    claim(work)


def test_only_an_idle_application_gets_time_for_its_shutdown(tmp_path: Path) -> None:
    """One that is killed while it answers, for example because it exceeds its memory limit, ends immediately."""

    async def work() -> None:
        for is_busy in (False, True):
            async with scripted(tmp_path, closes=True) as made:
                running = made.run(2 * is_busy)
                await until(lambda: len(made.environment._running) == len(running))  # noqa: B023
                made.environment.kill()
                assert made.environment.child is not None
                assert made.environment.child.leaving != is_busy
                results = await within(asyncio.gather(*running))
                assert [json.loads(each.payload)["errorType"] for each in results] == 2 * is_busy * [
                    "Runtime.ExitError"
                ]

    claim(work)
