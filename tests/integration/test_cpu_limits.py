"""`server.cpu_limits`: environments get the CPU share that belongs to their memory size."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Project, eventually
from thawd.environments.sandbox.cpu import with_cpu_limits
from thawd.environments.sandbox.memory import find_limiter

pytestmark = pytest.mark.serial

CODE = """
    import time

    def handler(event, context):
        begun_s, used_s = time.monotonic(), time.process_time()
        while time.monotonic() - begun_s < 1.0:
            pass
        return time.process_time() - used_s
"""


@pytest.fixture
def limited(project: Project) -> Project:
    project.code(CODE)
    project.config(
        'cpu_limits = true\n[functions.small]\nhandler = "app.handler"\nmemory_mb = 177\n'
        '[functions.cold]\nhandler = "app.handler"\nmemory_mb = 177\nsnapshot = false\n'
    )
    return project


def test_an_environment_gets_the_share_that_goes_with_its_memory(limited: Project) -> None:
    if with_cpu_limits(find_limiter()) is None:
        pytest.skip("no cgroup with the cpu controller may be written here")
    with limited.up() as server:
        assert any("CPU shares" in line for line in server.output)
        for name in ("small", "cold"):
            # The environment enters its group soon after the start. It gets a tenth of a CPU; the margin is for a
            # scheduling period more or less.
            eventually(lambda name=name: server.invoke(name)[0] < 0.2, what=f"the share of {name}")


def test_where_no_cgroup_may_be_written_it_is_said_at_the_start(limited: Project) -> None:
    limited.code(
        """
        from thawd.environments.sandbox import controllers, memory
        controllers.own_group = lambda controller: None
        memory.find_limiter = memory.MemoryLimiter
        """,
        "sitecustomize.py",
    )
    with limited.up(environ={"PYTHONPATH": str(limited.root)}) as server:
        assert any(
            line.startswith("thawd: cpu_limits is set, but environments have no CPU limit") for line in server.output
        )
        assert server.invoke("small")[1] is None
