"""An image that was found unchecked: checked once, before the first thaw, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import turns, version_of
from thawd.environments.sandbox.memory import MemoryLimiter
from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.starts.image_making import FreezeResult
from thawd.environments.starts.launcher import Launcher
from thawd.errors import ServiceException
from thawd.invocation import StartKind
from thawd.telemetry.metrics import Metrics


class FakeImage(SimpleNamespace):
    """What a spawner sees of an image."""

    def __init__(self, name: str, *, unchecked: bool) -> None:
        thawable = SimpleNamespace(restore_ms=1.0)
        super().__init__(name=name, unchecked=unchecked, failures=0, fork_refused=None, thawable=thawable)
        self.arrival = None

    def is_forked_in_bursts(self, *, thawing: int) -> bool:
        return False


class FakeSnapshots:
    """Finds one image, which is unchecked; makes another."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.usable: bool | Exception = True
        self.calls: list[str] = []

    async def find(self, version: object) -> FakeImage:
        self.calls.append("find")
        return FakeImage("found", unchecked=True)

    async def find_again(self, version: object) -> None:
        return None

    async def check(self, version: object, image: FakeImage) -> bool:
        self.calls.append("check")
        await self.gate.wait()
        if isinstance(self.usable, Exception):
            raise self.usable
        image.unchecked = not self.usable
        return self.usable

    async def make(self, version: object) -> FreezeResult:
        self.calls.append("make")
        made: Any = FakeImage("made", unchecked=False)
        return FreezeResult(made)

    async def discard(self, image: FakeImage) -> None:
        self.calls.append(f"discard {image.name}")

    async def release(self, image: FakeImage) -> None:
        self.calls.append(f"release {image.name}")

    async def supersede(self, image: FakeImage) -> None:
        self.calls.append(f"supersede {image.name}")


class FakeStarter:
    """Thaws images, which must have been checked."""

    def __init__(self) -> None:
        self.thawed: list[str] = []
        self.spawner: Spawner

    async def thaw(self, version: Any, thawable: object, **_: object) -> Any:
        frozen: Any = self.spawner.origin(version).frozen
        assert not frozen.unchecked
        self.thawed.append(frozen.name)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return SimpleNamespace(kind=StartKind.THAW, init_ms=1.0, child=SimpleNamespace(ended=ended))


def made(folder: Path) -> tuple[Spawner, FakeSnapshots, FakeStarter]:
    launcher = Launcher(log_folder=folder, log_max_bytes=1 << 20)
    services: Any = None
    spawner: Any = Spawner(
        launcher, limiter=MemoryLimiter(), services=services, metrics=Metrics(), report=lambda line: None
    )
    snapshots, starter = FakeSnapshots(), FakeStarter()
    spawner._snapshots, spawner._starter, spawner._why_no_image = snapshots, starter, None
    starter.spawner = spawner
    return spawner, snapshots, starter


async def test_a_publication_does_not_check_and_starts_at_the_same_time_check_once(tmp_path: Path) -> None:
    spawner, snapshots, starter = made(tmp_path)
    version = version_of("f")
    await spawner.prepare(version)
    assert snapshots.calls == ["find"]
    assert spawner.origin(version).start == StartKind.THAW

    starts = [asyncio.ensure_future(spawner.start(version)) for _ in range(3)]
    await turns()
    assert starter.thawed == []
    snapshots.gate.set()
    await asyncio.gather(*starts)
    await spawner.start(version)

    assert snapshots.calls == ["find", "check"]
    assert starter.thawed == ["found"] * 4


async def test_an_image_that_does_not_pass_is_replaced_before_anything_is_thawed(tmp_path: Path) -> None:
    spawner, snapshots, starter = made(tmp_path)
    version = version_of("f")
    await spawner.prepare(version)
    snapshots.usable = False
    snapshots.gate.set()

    await asyncio.gather(*(spawner.start(version) for _ in range(3)))

    assert snapshots.calls == ["find", "check", "discard found", "make"]
    assert starter.thawed == ["made"] * 3


async def test_a_check_that_could_not_start_a_process_is_repeated_by_the_next_start(tmp_path: Path) -> None:
    spawner, snapshots, starter = made(tmp_path)
    version = version_of("f")
    await spawner.prepare(version)
    snapshots.usable = OSError(11, "Resource temporarily unavailable")
    snapshots.gate.set()
    with pytest.raises(ServiceException):
        await spawner.start(version)
    await turns()
    assert snapshots.calls == ["find", "check", "release found"]

    snapshots.usable = True
    await spawner.start(version)

    assert snapshots.calls[3:] == ["find", "check"]
    assert starter.thawed == ["found"]


async def test_an_error_that_nobody_waited_for_is_not_that_of_a_later_start(tmp_path: Path) -> None:
    spawner, snapshots, starter = made(tmp_path)
    version = version_of("f")
    await spawner.prepare(version)
    snapshots.usable = OSError(11, "Resource temporarily unavailable")
    start = asyncio.ensure_future(spawner.start(version))
    await turns()
    start.cancel()
    await asyncio.wait([start])
    snapshots.gate.set()
    await turns()
    assert "release found" in snapshots.calls

    snapshots.usable = True
    await spawner.start(version)

    assert starter.thawed == ["found"]


async def test_an_image_whose_version_is_retired_during_the_check_is_released_once(tmp_path: Path) -> None:
    spawner, snapshots, _ = made(tmp_path)
    version = version_of("f")
    await spawner.prepare(version)
    start = asyncio.ensure_future(spawner.start(version))
    await turns()

    spawner.retire(version)
    snapshots.gate.set()
    await asyncio.wait([start])
    await turns()

    assert snapshots.calls == ["find", "check", "release found"]


async def test_no_spare_is_thawed_from_an_image_that_is_not_checked(tmp_path: Path) -> None:
    spawner, snapshots, starter = made(tmp_path)
    version = version_of("f")
    await spawner.prepare(version)

    assert await spawner.park(version) is None

    assert snapshots.calls == ["find"]
    assert starter.thawed == []
