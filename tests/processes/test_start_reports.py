"""What the log says about a start: a restore, or an init for which the request has waited."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.processes.real_spawner import Platform, invocation
from thawd.environments.starts.engine_files import Engine
from thawd.snapshot.engine import unavailable
from thawd.snapshot.store.images import SnapshotStore

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

CODE = """
import time
time.sleep(0.3)

def handler(event, context):
    return event
"""


def reported(made: Platform) -> tuple[list[float], list[tuple[str, float]]]:
    """The durations in RESTORE_REPORT lines, and kinds and durations of starts in REPORT lines, milliseconds."""
    text = b"\n".join(made.log()).decode()
    restores = re.findall(r"RESTORE_REPORT Restore Duration: ([\d.]+) ms", text)
    starts = re.findall(r"^REPORT .*\t(Init|Restore) Duration: ([\d.]+) ms", text, re.MULTILINE)
    return [float(each) for each in restores], [(kind, float(each)) for kind, each in starts]


def test_a_restore_for_which_an_image_was_made_is_reported_as_an_init(tmp_path: Path) -> None:
    async def run() -> None:
        made = Platform(tmp_path, CODE)
        made.spawner.use_snapshots(Engine.find(), SnapshotStore(tmp_path / "snapshots"))
        try:
            for _ in range(2):
                environment = await made.spawner.start(made.version)
                await environment.invoke(invocation(1), init_ms=environment.init_ms)
        finally:
            await made.end()
        restores, starts = reported(made)
        assert [kind for kind, _ in starts] == ["Init", "Restore"]
        assert starts[0][1] > 300 > max(restores)
        assert starts[1][1] == restores[-1]

    asyncio.run(run())
