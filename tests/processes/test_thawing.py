"""Starting from snapshots, the platform's side: real processes, and fakes for thaw where it must fail."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.processes.real_spawner import Platform, descriptors, invocation
from tests.unit.execution_fakes import claim, until, within
from thawd.environments.init_phase import InitError
from thawd.environments.starts import frozen_images, thaw_fork_cold
from thawd.environments.starts.engine_files import Engine
from thawd.environments.starts.origin import Origin
from thawd.invocation import StartKind
from thawd.snapshot.engine import unavailable
from thawd.snapshot.store.images import SnapshotStore
from thawd.telemetry.metrics import Fallback

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CODE = """
import os
print("init runs")

def handler(event, context):
    return os.getpid()
"""


@asynccontextmanager
async def platform(folder: Path, code: str = CODE, **function: object) -> AsyncIterator[Platform]:
    made = Platform(folder, code, **function)
    made.spawner.use_snapshots(Engine.find(), SnapshotStore(folder / "snapshots"))
    try:
        yield made
    finally:
        await made.end()


def images(folder: Path) -> list[Path]:
    return list((folder / "snapshots").glob("*.img"))


def drafts(folder: Path) -> list[Path]:
    return list((folder / "snapshots").glob(".new-*"))


def inits(made: Platform) -> int:
    return made.log().count(b"init runs")


def exchange_thaw(made: Platform, script: str) -> Origin:
    """Replace the thaw program with a shell script from now on."""
    program = made.folder / "stand-in"
    program.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}\n")
    program.chmod(0o755)
    origin = made.spawner.origin(made.version)
    assert origin.frozen is not None
    origin.frozen.thawable.program = program
    return origin


async def start_and_end(made: Platform) -> StartKind:
    """Start an environment, invoke it and end it. Return how it was started."""
    environment = await within(made.spawner.start(made.version))
    result = await environment.invoke(invocation(), init_ms=None)
    assert json.loads(result.payload) == environment.child.pid, (made.told, made.log())
    environment.kill()
    await within(environment.ended.wait())
    return environment.kind


def test_thaws_and_what_prepares_them_leave_no_descriptor_open(tmp_path: Path) -> None:
    async def work() -> None:
        before = descriptors()
        async with platform(tmp_path, prime=b"{}") as made:
            await made.spawner.prepare(made.version)
            assert inits(made) == 1
            assert {await start_and_end(made) for _ in range(5)} == {StartKind.THAW}, made.told
        async with platform(tmp_path, prime=b"{}") as made:
            await made.spawner.prepare(made.version)
            assert inits(made) == 1, "the second one found the image of the first"
            assert await start_and_end(made) == StartKind.THAW, made.told
            exchange_thaw(made, "exit 121")
            assert await start_and_end(made) == StartKind.COLD
        await until(lambda: descriptors() == before)  # leases are released in a thread

    claim(work)


def test_starts_at_once_share_one_init_and_one_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_images, "_SLOW_RESTORE_MS", math.inf)  # otherwise a slow machine forks some of them

    async def work() -> None:
        async with platform(tmp_path) as made:
            environments = await asyncio.gather(*(made.spawner.start(made.version) for _ in range(6)))
            assert {environment.kind for environment in environments} == {StartKind.THAW}
            assert inits(made) == 1
            assert len(images(tmp_path)) == 1
            assert drafts(tmp_path) == []

    claim(work)


def test_three_thaws_in_a_row_that_fail_end_the_use_of_an_image(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            origin = exchange_thaw(made, "echo 'thawd: thaw failed at memory: no luck (errno 12)' >&2; exit 121")
            kinds = [await start_and_end(made) for _ in range(2)]
            assert kinds == [StartKind.COLD] * 2, (
                "to run init in a template takes as long as to run it in the environment"
            )
            assert origin.frozen is not None
            await start_and_end(made)
            assert origin.frozen is None
            assert origin.why_no_image is not None
            assert origin.why_no_image.text == "3 thaws failed, the last one: thaw failed at memory: no luck (errno 12)"
            assert await start_and_end(made) == StartKind.FORK
            assert made.metrics.function("f").fallbacks[Fallback.THAW_FAILED] == 4
            assert made.told == [
                "thawd: f: a thaw failed: thaw failed at memory: no luck (errno 12)",
                f"thawd: f: no longer thawed: {origin.why_no_image.text}",
            ]
            await until(lambda: not images(tmp_path))

    claim(work)


def test_a_thaw_that_succeeds_makes_up_for_those_that_failed(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            origin = made.spawner.origin(made.version)
            assert origin.frozen is not None
            program = origin.frozen.thawable.program
            for _ in range(4):
                exchange_thaw(made, "exit 1")
                assert await start_and_end(made) == StartKind.COLD
                origin.frozen.thawable.program = program
                assert await start_and_end(made) == StartKind.THAW

    claim(work)


def test_a_thaw_that_somebody_else_kills_is_not_held_against_the_image(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            origin = exchange_thaw(made, "kill -9 $$")
            assert [await start_and_end(made) for _ in range(5)] == [StartKind.COLD] * 5
            assert origin.frozen is not None
            assert made.metrics.function("f").fallbacks[Fallback.THAW_FAILED] == 5

    claim(work)


def test_a_thaw_that_hangs_makes_nobody_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            exchange_thaw(made, "sleep 100")
            monkeypatch.setattr(thaw_fork_cold, "_THAW_S", 0.3)
            assert await start_and_end(made) == StartKind.COLD
            assert "Init timed out after 0.3 seconds" in made.told[0]

    claim(work)


def test_an_image_that_does_not_fit_any_more_is_made_anew(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            origin = exchange_thaw(made, "echo 'thawd: cannot thaw here: the moon is full' >&2; exit 120")
            (old,) = images(tmp_path)
            assert await start_and_end(made) == StartKind.COLD
            assert made.told == ["thawd: f: a thaw failed: cannot thaw here: the moon is full"]
            await until(lambda: not origin.renewing)
            assert await start_and_end(made) == StartKind.THAW
            await until(lambda: old not in images(tmp_path))

    claim(work)


def test_a_machine_on_which_no_image_fits_for_long_is_left_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            origin = made.spawner.origin(made.version)
            for _ in range(4):
                exchange_thaw(made, "exit 120")
                await start_and_end(made)
                await until(lambda: not origin.renewing)
            assert origin.frozen is None
            assert await start_and_end(made) == StartKind.FORK

    claim(work)


def test_an_image_in_use_by_another_server_is_not_removed(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            store = SnapshotStore(tmp_path / "snapshots")
            (old,) = store.snapshots()
            with store.use(old):
                origin = exchange_thaw(made, "exit 120")
                await start_and_end(made)
                await until(lambda: not origin.renewing)
                assert old.path.exists()
            assert await start_and_end(made) == StartKind.THAW

    claim(work)


def test_a_version_retired_while_it_is_frozen_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with platform(tmp_path, "X = bytearray(b'x') * (300 << 20)\n" + CODE) as made:
            preparing = asyncio.create_task(made.spawner.prepare(made.version))
            await until(
                lambda: any(path.stat().st_size for draft in drafts(tmp_path) for path in draft.iterdir()),
            )
            made.spawner.retire(made.version)
            with pytest.raises(asyncio.CancelledError):
                await within(preparing)
            await within(made.launcher.children.all_ended())
            await until(lambda: not drafts(tmp_path))
            assert images(tmp_path) == []

    claim(work)


def test_a_disk_that_is_full_leaves_the_function_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def full(path: object) -> os.statvfs_result:
        values = list(real(path))  # type: ignore[call-overload]
        values[4] = 0  # field f_bavail
        return os.statvfs_result(values)

    async def work() -> None:
        async with platform(tmp_path) as made:
            monkeypatch.setattr(os, "statvfs", full)
            await made.spawner.prepare(made.version)
            assert await start_and_end(made) == StartKind.FORK
            why_no_image = made.spawner.origin(made.version).why_no_image
            assert why_no_image is not None
            assert "free some" in why_no_image.text

    claim(work)


def test_an_init_that_fails_is_tried_again_at_the_next_start(tmp_path: Path) -> None:
    async def work() -> None:
        flag = tmp_path / "flag"
        async with platform(
            tmp_path, f"import os\nif not os.path.exists({str(flag)!r}): raise KeyError('x')\n" + CODE
        ) as made:
            with pytest.raises(InitError, match="x"):
                await made.spawner.prepare(made.version)
            with pytest.raises(InitError, match="x"):
                await made.spawner.start(made.version)
            flag.touch()
            assert await start_and_end(made) == StartKind.THAW

    claim(work)


PLACED = """
import os, sys
from thawd.environments.starts.program_execution import file_actions
from thawd.wire import frames as wire

pairs = [os.pipe() for _ in range(4)]
for number, (read, write) in enumerate(pairs):
    os.write(write, str(number).encode())
# The read ends go to numbers that are in each other's way.
above = [os.dup2(read, 50 + number) for number, (read, _) in enumerate(pairs)]
os.closerange(3, 50)
theirs = [os.dup2(fd, number) for fd, number in zip(above, map(int, sys.argv[1:]))]
for fd in (*above, *theirs):
    os.set_inheritable(fd, False)
shell = "for n in 3 4 5 1; do dd bs=1 count=1 status=none <&$n >>found; done; ls /proc/self/fd >>found"
actions = file_actions(tuple(theirs))
pid = os.posix_spawn("/bin/sh", ["sh", "-c", shell], {"PATH": os.environ["PATH"]}, file_actions=actions)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("numbers", [(3, 4, 5, 6), (5, 3, 4, 6), (4, 5, 6, 3), (10, 11, 12, 13), (20, 4, 3, 5)])
def test_descriptors_arrive_under_their_numbers_whatever_numbers_they_had(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    """Each pipe holds its own index in the list.

    The last one is passed as the log, on standard output and standard error.
    """
    subprocess.run([sys.executable, "-c", PLACED, *map(str, numbers)], cwd=tmp_path, timeout=300, check=True)
    pipes, *rest = (tmp_path / "found").read_text().splitlines()
    assert pipes == "01230"
    assert rest == ["1", "2", "3", "4", "5", "6"], "6 is that of ls, and no other is open"


def test_a_template_for_a_burst_that_fails_is_one_failure_and_not_one_for_each_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen_images, "_SLOW_RESTORE_MS", 0.0)

    async def work() -> None:
        async with platform(tmp_path) as made:
            await made.spawner.prepare(made.version)
            origin = made.spawner.origin(made.version)
            assert origin.frozen is not None
            program = origin.frozen.thawable.program
            exchange_thaw(made, f'[ "$2" = template ] && exit 121; exec {program} "$@"')
            environments = await asyncio.gather(*(made.spawner.start(made.version) for _ in range(8)))
            assert {environment.kind for environment in environments} == {StartKind.THAW}
            assert origin.frozen is not None
            exchange_thaw(made, f'exec {program} "$@"')
            more = await asyncio.gather(*(made.spawner.start(made.version) for _ in range(8)))
            assert {environment.kind for environment in more} == {StartKind.THAW, StartKind.FORK}
            assert inits(made) == 1

    claim(work)
