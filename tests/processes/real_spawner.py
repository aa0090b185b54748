"""A spawner for one function that starts real processes, invocations for it, and a count of open descriptors."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.execution_fakes import within
from thawd.environments.sandbox.memory import MemoryLimiter
from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.starts.launcher import Launcher
from thawd.environments.version import Version, variables_of
from thawd.invocation import Invocation
from thawd.resources import Function
from thawd.telemetry.logs.writer import read_lines
from thawd.telemetry.metrics import Metrics


async def no_services(head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    return {"error": "there are none"}, b""


class Platform:
    """A spawner for one function, and the environments it starts."""

    def __init__(self, folder: Path, code: str, **function: Any) -> None:
        self.folder = folder
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "app.py").write_text(textwrap.dedent(code))
        self.told: list[str] = []
        self.metrics = Metrics()
        self.launcher = Launcher(log_folder=folder, log_max_bytes=1 << 20)
        self.spawner = Spawner(
            self.launcher,
            limiter=MemoryLimiter(),
            services=no_services,
            metrics=self.metrics,
            report=self.told.append,
        )
        self.version = self.make(**function)

    def make(self, *, python: str = sys.executable, **function: Any) -> Version:
        declared = Function(name="f", handler="app.handler", code=self.folder / "code", **{"timeout_s": 10, **function})
        variables = variables_of(declared, task_root=declared.code, python_version="3.11.7", buckets={}, own=os.environ)
        return Version(declared, 1, Path(python), "3.11.7", str(declared.code), variables)

    def log(self) -> list[bytes]:
        self.launcher.flush_logs()
        return [line.split(b"\t", 2)[2].rstrip(b"\n") for line in read_lines(self.folder / "f.log")]

    async def end(self) -> None:
        self.spawner.retire(self.version)
        self.launcher.children.kill_all()
        await within(self.launcher.children.all_ended())
        await asyncio.sleep(0.7)  # longer than the spawner waits for the last output


@asynccontextmanager
async def platform(folder: Path, code: str, **function: Any) -> AsyncIterator[Platform]:
    """A `Platform` that is stopped after the block."""
    made = Platform(folder, code, **function)
    try:
        yield made
    finally:
        await made.end()


def invocation(event: Any = None) -> Invocation:
    """Make an invocation of `platform`'s function that waits at most ten seconds for an environment."""
    return Invocation("f", json.dumps(event).encode(), time.monotonic() + 10)


def descriptors() -> int:
    """Return the number of descriptors that this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
