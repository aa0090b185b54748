"""`thawd.environments.environment` and its channels: nothing leaks, and all output of a process is reported."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes.real_spawner import Platform, descriptors, invocation, no_services, platform
from tests.unit.execution_fakes import claim, until, within
from thawd.environments import environment as environments
from thawd.environments.channels import Channels
from thawd.environments.child_processes import Children
from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError
from thawd.invocation import StartKind
from thawd.telemetry.logs.writer import FunctionLog, LogStream
from thawd.wire import frames


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_running_out_of_descriptors_leaks_none() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    free = [fd for fd in range(256) if not is_open(fd)]
    leaks = []
    for room in range(8):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                Channels.open()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        leaks.append(descriptors() - before)
    assert leaks == [0] * 8


def test_channels_closed_twice_close_no_other_descriptors() -> None:
    """A cancelled fork closes its channels. The frame with them may still be unsent, and closes them again later."""
    channels = Channels.open()
    channels.close()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(12)]
    try:
        try:
            channels.close_process_ends()
        except OSError:
            pass
        for fd in others:
            os.fstat(fd)
    finally:
        for fd in others:
            try:
                os.close(fd)
            except OSError:
                pass


def test_last_words_without_a_newline_are_in_the_log(tmp_path: Path) -> None:
    async def work() -> None:
        code = "import os\nos.write(2, b'my last words')\nos._exit(7)"
        async with platform(tmp_path, code, snapshot=False) as made:
            with pytest.raises(InitError, match="exit status 7"):
                await made.spawner.start(made.version)
        assert b"my last words" in made.log()

    claim(work)


def test_an_environment_killed_while_it_is_idle_is_known_to_be_unusable_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_LAST_WORDS_S", 3600.0)  # the test must not end by this timeout

    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            environment = await within(made.spawner.start(made.version))
            assert environment.child is not None
            os.kill(environment.child.pid, signal.SIGKILL)
            await within(environment.ended.wait())

    claim(work)


def test_an_idle_environment_keeps_no_answer_in_memory(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 'x' * 1000000", snapshot=False) as made:
            environment = await within(made.spawner.start(made.version))
            body = (await within(environment.invoke(invocation(), init_ms=None))).payload
            assert len(body) == 1_000_002
            await asyncio.sleep(0)  # the loop itself holds the answer until the turn in which it came has ended
            holders = [type(each).__name__ for each in gc.get_referrers(body)]
            assert holders == []

    claim(work)


def test_an_environment_whose_caller_has_gone_gets_no_time_for_its_applications_shutdown(tmp_path: Path) -> None:
    """Its handler may still run."""

    async def work() -> None:
        code = "import time\ndef handler(e, c):\n    time.sleep(e)"
        async with platform(tmp_path, code, snapshot=False) as made:
            environment = await within(made.spawner.start(made.version))
            environment._closes = True
            await within(environment.invoke(invocation(0), init_ms=None))
            running = asyncio.ensure_future(environment.invoke(invocation(600), init_ms=None))
            await until(lambda: environment.busy_since is not None)
            running.cancel()
            await asyncio.wait([running])
            assert environment.busy_since is None
            environment.kill()
            assert environment.child is not None
            assert not environment.child.leaving
            await within(environment.ended.wait())

    claim(work)


HOSTILE = [
    frames.encode(frames.RESULT, {"duration_ms": "abc", "peak_kib": 0, "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": "5", "peak_kib": "5", "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": float("nan"), "peak_kib": 0, "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": 1, "peak_kib": float("inf"), "failed": False}, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": -1e300, "peak_kib": -5, "failed": False}, b"1"),
    frames.encode(frames.RESULT, [1], b"1"),
    frames.encode(frames.RESULT, None, b"1"),
    frames.encode(frames.RESULT, {"duration_ms": 1, "peak_kib": 1, "failed": False}, b"\xff is no text"),
    frames.encode(frames.READY, {}, b""),
    frames.encode(frames.INIT_ERROR, {}, b""),
    frames.encode(99, {}, b""),
    b"\xff" * 64,
    frames.HEADER.pack(200_000, 0, frames.RESULT) + b"[" * 200_000,
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_process_sends_its_invocation_ends_in_a_result_and_not_in_an_exception(
    tmp_path: Path, data: bytes
) -> None:
    async def work() -> None:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        version = Platform(tmp_path, "").version
        stream = LogStream(FunctionLog(tmp_path / "f.log", max_bytes=1 << 20), version="1", identifier="x")
        channels = Channels.open()
        theirs = socket.socket(fileno=os.dup(channels.process_ends[0]))
        environment = Environment(version, identifier="x", kind=StartKind.COLD, stream=stream, channels=channels)
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)  # noqa: ASYNC220
        process.returncode = 0
        channels.close_process_ends()
        children = Children()
        await environment.connect(no_services)
        environment.adopt(children.watch(process.pid))
        theirs.sendall(frames.encode(frames.READY, {"pid": 1, "init_ms": 1.0}))
        await within(environment.ready)
        running = asyncio.ensure_future(environment.invoke(invocation(), init_ms=None))
        await asyncio.sleep(0)
        theirs.sendall(data)
        theirs.settimeout(None)
        try:
            result = await within(running)
            assert result.duration_ms >= 0
            json.loads(result.payload)
        finally:
            environment.kill()
            theirs.close()
            await within(environment.ended.wait())
            await asyncio.sleep(0.01)
        assert complaints == []

    claim(work)
