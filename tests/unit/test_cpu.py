"""CPU shares on real processes if this machine allows it, and the values written for cgroups of version 2."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from thawd.environments.sandbox import controllers, cpu, memory
from thawd.environments.sandbox.controllers import AddedController
from thawd.environments.sandbox.cpu import quota_us, with_cpu_limits
from thawd.environments.sandbox.memory import Cgroup, MemoryLimiter

pytestmark = pytest.mark.serial

SPIN = "import sys\nprint('spinning', flush=True)\nwhile True: pass"


@pytest.mark.parametrize(("memory_mb", "share"), [(1769, 1.0), (3538, 2.0), (10_240, 5.79), (512, 0.29), (128, 0.072)])
def test_the_share_is_lambdas(memory_mb: int, share: float) -> None:
    assert quota_us(memory_mb) / cpu.PERIOD_US == pytest.approx(share, rel=0.01)


def test_a_process_gets_no_more_than_its_share_and_its_group_goes_with_it() -> None:
    limiter = with_cpu_limits(MemoryLimiter())
    if not isinstance(limiter, AddedController):
        pytest.skip("no cgroup of version 1 with the cpu controller may be written here")
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            limit = limiter.limit(child.pid, identifier="test", limit_mib=177)  # a tenth of a CPU
            limiter._thread.submit(int).result()
            (group,) = limiter.parent.glob("thawd-*-test")
            assert (group / "cgroup.procs").read_text().split() == [str(child.pid)]
            begun_s, used_s = time.monotonic(), cpu_s(child.pid)
            while time.monotonic() - begun_s < 1.5:
                time.sleep(0.05)
            assert cpu_s(child.pid) - used_s <= 0.13 * (time.monotonic() - begun_s) + 0.02
            assert limit.check()
        finally:
            child.kill()
    limit.close()
    limiter.close()
    assert not group.exists()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_in_version_2_the_memory_limits_group_serves_for_processes_and_cpu(tmp_path: Path) -> None:
    """A plain folder represents the control group, which shows what would be written to the kernel."""
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")
    limiter = Cgroup(tmp_path, v2=True)
    limiter.make(tmp_path / "plain", 512 << 20)
    assert (tmp_path / "plain" / "pids.max").read_text() == "1024"
    assert not (tmp_path / "plain" / "cpu.max").exists()
    assert with_cpu_limits(limiter) is limiter
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    limiter.make(tmp_path / "shared", 1769 << 20)
    assert (tmp_path / "shared" / "cpu.max").read_text() == "20000 20000"
    assert (tmp_path / "shared" / "memory.max").read_text() == str(1769 << 20)
    limiter.close()


def test_where_no_group_may_be_written_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "_HIERARCHIES", tmp_path / "none")
    assert with_cpu_limits(memory.MemoryLimiter()) is None
    (tmp_path / "file").touch()
    limiter = Cgroup(tmp_path / "file", v2=True)
    assert with_cpu_limits(limiter) is None
    limiter.close()
