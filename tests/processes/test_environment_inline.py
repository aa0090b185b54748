"""`thawd.environments.environment`, when invocations follow each other without a turn of the event loop in between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.processes.real_spawner import Platform, invocation, no_services
from tests.unit.execution_fakes import claim, within
from thawd.environments.channels import Channels
from thawd.environments.environment import Environment
from thawd.invocation import StartKind
from thawd.system.inline import run_inline
from thawd.telemetry.logs.writer import FunctionLog, LogStream
from thawd.wire import frames

GOOD = {"duration_ms": 1.0, "peak_kib": 1, "failed": False}


@asynccontextmanager
async def scripted(folder: Path) -> AsyncIterator[tuple[Environment, socket.socket]]:
    """An environment, and the end of its channel that its process would have."""
    version = Platform(folder, "").version
    stream = LogStream(FunctionLog(folder / "f.log", max_bytes=1 << 20), version="1", identifier="x")
    channels = Channels.open()
    environment = Environment(version, identifier="x", kind=StartKind.COLD, stream=stream, channels=channels)
    theirs = socket.socket(fileno=channels.process_ends[0])
    channels.process_ends = (-1, *channels.process_ends[1:])
    theirs.setblocking(False)
    channels.close_process_ends()
    await environment.connect(no_services)
    theirs.sendall(frames.encode(frames.READY, {"pid": 1, "init_ms": 1.0}))
    await within(environment.ready)
    try:
        yield environment, theirs
    finally:
        environment.abandon()
        theirs.close()


async def _frames(theirs: socket.socket, number: int) -> list[frames.Frame]:
    decoder = frames.Decoder()
    found: list[frames.Frame] = []
    while len(found) < number:
        decoder.feed(await within(asyncio.get_running_loop().sock_recv(theirs, 1 << 16)))
        while (frame := decoder.take()) is not None:
            found.append(frame)
    return found


def _run_three(environment: Environment) -> tuple[list[bytes], asyncio.Event]:
    """Invoke three times, each time in the callback that brings the answer before. Returns the answers, and the end."""
    answers: list[bytes] = []
    over = asyncio.Event()

    async def work() -> None:
        for _ in range(3):
            answers.append((await environment.invoke(invocation(), init_ms=None)).payload)
        over.set()

    loop = asyncio.get_running_loop()
    loop.call_soon(run_inline, work(), loop.create_task)
    return answers, over


def _result(body: bytes) -> bytes:
    return frames.encode(frames.RESULT, GOOD, body)


def test_the_next_invocation_is_sent_in_the_callback_that_brings_an_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path) as (environment, theirs):
            answers, over = _run_three(environment)
            for number in range(3):
                [frame] = await _frames(theirs, 1)
                assert frame.kind == frames.INVOKE
                theirs.sendall(_result(b"%d" % number))
            await within(over.wait())
            assert answers == [b"0", b"1", b"2"]

    claim(work)


def test_what_a_process_sends_too_much_is_nobodys_answer(tmp_path: Path) -> None:
    """User code can write to the process's descriptor. What comes with an answer must not answer the next one."""

    async def work() -> None:
        async with scripted(tmp_path) as (environment, theirs):
            answers, over = _run_three(environment)
            await _frames(theirs, 1)
            theirs.sendall(_result(b"0") + _result(b'"forged"') + _result(b'"again"'))
            for number in (1, 2):
                await _frames(theirs, 1)
                theirs.sendall(_result(b"%d" % number))
            await within(over.wait())
            assert answers == [b"0", b"1", b"2"]

    claim(work)


def test_a_process_that_ends_fails_the_invocation_after_its_own_cleanup(tmp_path: Path) -> None:
    async def work() -> None:
        ended: list[Any] = []
        async with scripted(tmp_path) as (environment, theirs):
            answers, over = _run_three(environment)
            environment.on_end = lambda _: ended.append(list(answers))
            await _frames(theirs, 1)
            environment.abandon()
            await within(over.wait())
            assert ended == [[]], "the pool learns of the end before the caller does"
            assert [b"Runtime.ExitError" in answer for answer in answers] == [True] * 3

    claim(work)


def test_a_caller_has_the_result_before_the_platform_writes_its_lines(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path) as (environment, theirs):
            found: list[tuple[bytes, bool]] = []
            lines: list[str] = []
            environment.stream.line = lambda *texts: lines.extend(texts)  # type: ignore[method-assign]
            asked = invocation()
            asked.on_result = lambda result: found.append((result.payload, any("END" in line for line in lines)))
            running = asyncio.ensure_future(environment.invoke(asked, init_ms=None))
            await _frames(theirs, 1)
            theirs.sendall(_result(b"1"))
            assert (await within(running)).payload == b"1"
            assert found == [(b"1", False)]
            assert [line.split()[0] for line in lines] == ["START", "END", "REPORT"]

    claim(work)
