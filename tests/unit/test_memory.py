"""Memory limits on real processes: by watching, and with a cgroup if this machine allows it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from thawd.environments.sandbox import memory

pytestmark = pytest.mark.serial

MIB = 1 << 20
ALLOCATE = """
import sys, time
sys.stdin.readline()
data = bytearray({mib} << 20)
for at in range(0, len(data), 4096):
    data[at] = 1
print("allocated", flush=True)
sys.stdin.readline()
"""


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def go(child: subprocess.Popen[str]) -> str:
    """Let the child allocate. Return what it prints, which is nothing if it is killed."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("go\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def test_watching_finds_a_process_over_its_limit_and_not_one_within() -> None:
    with process(ALLOCATE.format(mib=100)) as child:
        tight = memory.MemoryLimiter().limit(child.pid, identifier="a", limit_mib=60)
        wide = memory.MemoryLimiter().limit(child.pid, identifier="b", limit_mib=200)
        assert tight.check()
        assert go(child) == "allocated"
        assert not tight.check()
        assert wide.check()
        assert 100 * MIB <= memory.private_bytes(child.pid) < 150 * MIB


def test_watching_counts_the_processes_children() -> None:
    code = (
        f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', '''{ALLOCATE.format(mib=100)}''']))"
    )
    with process(code) as parent:
        limit = memory.MemoryLimiter().limit(parent.pid, identifier="a", limit_mib=60)
        assert limit.check()
        assert go(parent) == "allocated"
        assert not limit.check()
        for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
            subprocess.run(["kill", "-9", pid], check=True)


def test_memory_shared_with_the_template_does_not_count() -> None:
    code = """
import os, sys
data = bytearray(100 << 20)
for at in range(0, len(data), 4096):
    data[at] = 1
pid = os.fork()
if pid == 0:
    sys.stdin.readline()
    sys.exit()
print(pid, flush=True)
os.waitpid(pid, 0)
"""
    with process(code) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert memory.MemoryLimiter().limit(child, identifier="a", limit_mib=60).check()
        assert memory.private_bytes(child) < 60 * MIB


def test_a_process_that_has_ended_is_within_its_limit() -> None:
    with process("") as child:
        child.wait()
        limit = memory.MemoryLimiter().limit(child.pid, identifier="a", limit_mib=1)
        assert limit.check()
        limit.close()


def test_the_kernel_kills_what_exceeds_its_cgroup() -> None:
    limiter = memory.find_limiter()
    if not isinstance(limiter, memory.Cgroup):
        pytest.skip("no cgroup may be written here")
    with process(ALLOCATE.format(mib=200)) as child:
        limit = limiter.limit(child.pid, identifier="test", limit_mib=64)
        # The thread works in order: when this returns, the earlier move is done.
        limiter._thread.submit(int).result()
        group = next(limiter.parent.glob("thawd-*-test"))
        assert go(child) == ""
        assert child.wait() == -signal.SIGKILL
        limit.close()
        limiter.close()
        assert not group.exists()


def test_groups_of_servers_that_are_gone_are_removed() -> None:
    limiter = memory.find_limiter()
    if not isinstance(limiter, memory.Cgroup):
        pytest.skip("no cgroup may be written here")
    left_over = limiter.parent / "thawd-4194304-abc"  # above the highest possible process id
    left_over.mkdir()
    again = memory.find_limiter()
    again.close()
    limiter.close()
    assert not left_over.exists()


def test_groups_of_a_server_that_was_just_killed_are_left_until_their_processes_have_ended(tmp_path: Path) -> None:
    gone = 1 << 23  # above the largest process id
    (tmp_path / f"thawd-{gone}-busy" / "member").mkdir(parents=True)
    (tmp_path / f"thawd-{gone}-empty").mkdir()
    assert memory.works(tmp_path, Path.mkdir)
    assert [path.name for path in tmp_path.iterdir()] == [f"thawd-{gone}-busy"]


def test_processes_that_are_not_visible_here_are_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their id is shown as 0, and a signal to 0 would reach the server's own process group."""
    killed: list[int] = []
    monkeypatch.setattr(memory.os, "kill", lambda pid, number: killed.append(pid))
    (tmp_path / "cgroup.procs").write_text("0\n4711\n")
    memory.remove_group(tmp_path)
    assert set(killed) == {4711}
