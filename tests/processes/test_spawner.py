"""`thawd.environments.starts.fastest_start`, with real processes: starts work whatever happens to templates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes.real_spawner import descriptors, invocation, platform
from tests.unit.execution_fakes import claim, until, within
from thawd.environments.init_phase import InitError
from thawd.errors import ServiceException
from thawd.invocation import StartKind


def test_starts_of_both_kinds_serve_and_leave_no_descriptor_open(tmp_path: Path) -> None:
    async def work() -> None:
        before = descriptors()
        async with platform(tmp_path, "import os\ndef handler(e, c): return os.getpid()") as made:
            forked = await made.spawner.start(made.version)
            assert forked.kind == StartKind.FORK
            cold = await made.spawner.start(made.make(snapshot=False))  # same generation, and so the same origin
            for environment in (forked, cold):
                result = await environment.invoke(invocation(), init_ms=None)
                assert json.loads(result.payload) == environment.child.pid  # type: ignore[union-attr]
                environment.kill()
                await within(environment.ended.wait())
        await until(lambda: descriptors() == before)

    claim(work)


def test_a_template_that_hangs_makes_nobody_wait_for_ever(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1", init_timeout_s=1) as made:
            await made.spawner.prepare(made.version)
            template = made.spawner.origin(made.version).template
            assert template is not None
            assert template.child is not None
            os.kill(template.child.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(60):
                    environment = await made.spawner.start(made.version)
            except InitError:
                return
            assert environment.kind == StartKind.COLD

    claim(work)


def test_a_template_that_is_killed_while_forks_are_asked_for_harms_none_of_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            await made.spawner.prepare(made.version)
            template = made.spawner.origin(made.version).template
            assert template is not None
            starts = [asyncio.ensure_future(made.spawner.start(made.version)) for _ in range(4)]
            await asyncio.sleep(0)
            template.kill()
            environments = await within(asyncio.gather(*starts))
            for environment in environments:
                result = await environment.invoke(invocation(), init_ms=None)
                assert result.payload in (b"1",) or b"Runtime.ExitError" in result.payload

    claim(work)


def test_a_fork_that_dies_with_its_template_before_it_is_ready_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "hold"
    code = f"""
import os, signal
os.register_at_fork(after_in_child=lambda: os.path.exists({str(hold)!r}) and signal.pause())
def handler(e, c): return 1
"""

    async def work() -> None:
        async with platform(tmp_path, code) as made:
            await made.spawner.prepare(made.version)
            template = made.spawner.origin(made.version).template
            assert template is not None
            fork = template.fork
            hold.touch()

            async def fork_and_die(*arguments: Any, **options: Any) -> int:
                pid = await fork(*arguments, **options)
                template.kill()
                await template.ended.wait()
                hold.unlink()
                os.kill(pid, signal.SIGKILL)
                return pid

            monkeypatch.setattr(template, "fork", fork_and_die)
            environment = await within(made.spawner.start(made.version))
            assert (await environment.invoke(invocation(), init_ms=None)).payload == b"1"
            assert not hold.exists()

    claim(work)


def test_a_template_killed_now_and_then_is_always_started_again(tmp_path: Path) -> None:
    """An occasional kill, by an operator or for lack of memory, must not end the forks of a version."""

    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            kinds = []
            for _ in range(3):
                environment = await within(made.spawner.start(made.version))
                kinds.append(environment.kind)
                template = made.spawner.origin(made.version).template
                if template is not None:
                    template.kill()
                    await within(template.ended.wait())
            assert kinds == [StartKind.FORK] * 3

    claim(work)


def test_a_version_retired_before_its_start_begins_leaves_no_template_behind(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "def handler(e, c): return 1") as made:
            await made.spawner.prepare(made.version)
            made.spawner.retire(made.version)
            try:
                environment = await within(made.spawner.start(made.version))
                environment.kill()
                await within(environment.ended.wait())
            except (InitError, ServiceException):
                pass
            await until(lambda: len(made.launcher.children._alive) == 0)

    claim(work)


@pytest.mark.parametrize("snapshot", [True, False])
def test_an_interpreter_that_is_gone_is_a_service_exception_everywhere(tmp_path: Path, snapshot: bool) -> None:
    async def work() -> None:
        before = descriptors()
        async with platform(tmp_path, "", snapshot=snapshot, python="/nowhere/python") as made:
            with pytest.raises(ServiceException):
                await made.spawner.start(made.version)
            if snapshot:
                with pytest.raises(ServiceException):
                    await made.spawner.prepare(made.version)
        await until(lambda: descriptors() == before)

    claim(work)


@pytest.mark.parametrize("kind", ["cold", "template"])
@pytest.mark.parametrize("channel", [0, 1])
def test_a_start_that_is_cancelled_while_it_connects_leaves_no_descriptor_open(
    tmp_path: Path, kind: str, channel: int
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        connect, connecting, calls = loop.create_unix_connection, asyncio.Event(), iter(range(10))

        async def hang(factory: Any, **arguments: Any) -> Any:
            if next(calls) < channel:
                return await connect(factory, **arguments)
            connecting.set()
            return await asyncio.Event().wait()

        async with platform(tmp_path, "def handler(event, context): pass") as made:
            starter = made.spawner._starter
            before = descriptors()
            loop.create_unix_connection = hang  # type: ignore[method-assign]
            start = (
                starter.template(made.version)
                if kind == "template"
                else starter.cold(made.version, provisioned=False, started_s=time.monotonic())
            )
            task = asyncio.create_task(start)
            await within(connecting.wait())
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await made.end()
            assert descriptors() == before

    asyncio.run(run())
