"""An image that an earlier server made is found without a process, and checked before the first thaw."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thawd.environments.init_phase import ReadyHead
from thawd.environments.starts.engine_files import Engine
from thawd.environments.starts.image_key import key_of
from thawd.environments.starts.image_making import Snapshots
from thawd.environments.starts.launcher import Launcher
from thawd.environments.starts.thawable import ThawFailedError
from thawd.environments.version import Version
from thawd.snapshot.store.images import ImageOrigin, SnapshotStore

from .execution_fakes import version_of
from .snapshot_images import whole

ENGINE = Engine(Path("/nowhere/library"), Path("/nowhere/program"))


class FakeStarter:
    """Thaws probes that report `head`, or fail with it."""

    def __init__(self, head: ReadyHead | ThawFailedError) -> None:
        self.probes = 0
        self._head = head

    async def thaw_template(self, *_: object, role: str, arguments: tuple[str, ...], outbox: object) -> Any:
        assert role == "probe"
        self.probes += 1
        if isinstance(self._head, ThawFailedError):
            raise self._head
        return SimpleNamespace(kill=lambda: None, ready=SimpleNamespace(result=lambda: self._head))


def stored(folder: Path, version: Version, *, dropped: list[str] | None) -> SnapshotStore:
    """A store with an image of the version."""
    store = SnapshotStore(folder / "snapshots")
    draft = store.begin()
    whole().write(draft.image)
    origin = ImageOrigin(
        function=version.function.name,
        version=version.number,
        key=key_of(version, ENGINE),
        python=version.python_version,
        init_ms=7.0,
        freeze_ms=1.0,
        data_bytes=1,
        self_test="passed",
        fork_refused="it has threads",
        dropped=dropped,
    )
    store.adopt(draft, origin)
    return store


def snapshots_of(
    folder: Path, store: SnapshotStore, head: ReadyHead | ThawFailedError
) -> tuple[Snapshots, FakeStarter]:
    starter: Any = FakeStarter(head)
    return Snapshots(ENGINE, store, starter, Launcher(log_folder=folder, log_max_bytes=1), bases=False), starter


async def test_an_image_is_found_without_a_process_and_says_what_its_process_reported(tmp_path: Path) -> None:
    version = version_of("f")
    store = stored(tmp_path, version, dropped=["to a database"])
    snapshots, starter = snapshots_of(tmp_path, store, ReadyHead(fork_refused="it has threads"))

    found = await snapshots.find(version)

    assert found is not None
    assert (found.unchecked, found.fork_refused, found.init_ms) == (True, "it has threads", 7.0)
    assert found.dropped == ["to a database"]
    assert starter.probes == 0
    assert store.snapshots()[0].in_use
    assert await snapshots.check(version, found)
    assert (starter.probes, found.unchecked) == (1, False)
    await snapshots.release(found)


@pytest.mark.parametrize(
    "head", [ReadyHead(changed="/etc/hosts"), ThawFailedError("a library has changed", cannot=True)]
)
async def test_an_image_that_must_not_be_used_does_not_pass_the_check(
    tmp_path: Path, head: ReadyHead | ThawFailedError
) -> None:
    version = version_of("f")
    store = stored(tmp_path, version, dropped=[])
    snapshots, _ = snapshots_of(tmp_path, store, head)
    found = await snapshots.find(version)
    assert found is not None

    assert not await snapshots.check(version, found)
    assert found.unchecked
    await snapshots.discard(found)

    assert store.snapshots() == []
    assert await snapshots.find(version) is None


@pytest.mark.parametrize("changed", [None, "/etc/hosts"])
async def test_an_image_of_an_earlier_release_is_checked_when_it_is_found(tmp_path: Path, changed: str | None) -> None:
    version = version_of("f")
    store = stored(tmp_path, version, dropped=None)
    snapshots, starter = snapshots_of(tmp_path, store, ReadyHead(changed=changed, dropped=["to a cache"]))

    found = await snapshots.find(version)

    assert starter.probes == 1
    if changed is not None:
        assert found is None
        assert store.snapshots() == []
    else:
        assert found is not None
        assert (found.unchecked, found.dropped) == (False, ["to a cache"])
        await snapshots.release(found)
