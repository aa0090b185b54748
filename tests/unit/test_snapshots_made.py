"""If an image breaks a rule of its format, there is no snapshot: nothing is thawed or kept, and no exception is
raised."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thawd.environments.starts.engine_files import Engine
from thawd.environments.starts.image_making import FreezeResult, Snapshots
from thawd.environments.starts.launcher import Launcher
from thawd.environments.starts.template import FrozenHead
from thawd.snapshot.store.images import SnapshotStore

from .execution_fakes import version_of
from .snapshot_images import STACK, Draft, operation, whole


class FakeTemplate:
    """A process that writes given bytes in place of an image, and continues."""

    def __init__(self, written: Draft) -> None:
        self.child = SimpleNamespace(pid=os.getpid())
        self.folder = None
        self.disk_refused = None
        self.killed = False
        self._written = written

    async def freeze(self, image: Path, *, library: Path) -> tuple[FrozenHead, bytes]:
        self._written.write(image)
        return FrozenHead(refused=None, fork_refused=None, answers_differ=False, init_ms=1.0), b""

    async def go_on(self) -> None:
        pass

    def kill(self) -> None:
        self.killed = True


class FakeStarter:
    """Has one template, and fails the test if a thaw is attempted."""

    def __init__(self, template: FakeTemplate) -> None:
        self._template = template

    async def template(self, version: object, *, to_freeze: bool) -> FakeTemplate:
        return self._template

    async def look_at_disk(self, template: FakeTemplate) -> None:
        pass

    async def thaw(self, *_: object, **__: object) -> None:
        pytest.fail("a broken image was thawed")


def made_of(written: Draft, folder: Path) -> tuple[FreezeResult, FakeTemplate]:
    """Return the result of a freeze that writes these bytes."""
    template = FakeTemplate(written)
    starter: Any = FakeStarter(template)
    engine = Engine(Path("/nowhere/library"), Path("/nowhere/program"))
    launcher = Launcher(log_folder=folder, log_max_bytes=1)
    snapshots = Snapshots(engine, SnapshotStore(folder), starter, launcher, bases=False)
    return asyncio.run(snapshots.make(version_of("broken"))), template


def test_an_image_with_overlapping_mappings_is_a_reason_and_is_not_kept(tmp_path: Path) -> None:
    broken = whole()
    broken.records["operations"].append(operation("ANONYMOUS", STACK, 1))
    made, template = made_of(broken, tmp_path)
    assert made.frozen is None
    assert made.refused.startswith("its image breaks a rule of the format")
    assert "two mappings overlap" in made.refused
    assert str(tmp_path) not in made.refused
    assert made.template is template, "the process that was to be frozen goes on, and is forked"
    assert not template.killed
    assert SnapshotStore(tmp_path).snapshots() == []
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1000]
