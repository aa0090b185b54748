"""A Ray cluster of this machine for tests: each node is a process of its own, started by ``ray start``.

Several nodes on one machine stand for several machines: each has its own raylet, agent and thawd, but they share the
network and the disk. Nothing of another Ray cluster on this machine is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pytest

from tests.integration.conftest import eventually
from tests.ports import quiet_port
from thawd.ray_nodes.options import NAMESPACE, SUPERVISOR, AgentReport
from thawd.ray_nodes.ray_library import connected
from thawd.ray_nodes.supervisor import Status

TOKEN = "a-token-of-ray-that-is-only-for-tests-0123456789"
RAY = Path(sys.executable).with_name("ray")
_LEAN = ("--include-log-monitor=false",)
# Ray's default ports are for one node on each machine.
_PORTS = (
    "--min-worker-port=0",
    "--max-worker-port=0",
    "--dashboard-agent-listen-port=0",
    "--dashboard-agent-grpc-port=0",
    "--metrics-export-port=0",
    "--runtime-env-agent-port=0",
)


class RayCluster:
    """A head node, and nodes that tests add and remove.

    Args:
        environ: further environment variables of all nodes.
        arguments: further arguments of ``ray start`` for the head node.
    """

    def __init__(self, environ: Mapping[str, str], *arguments: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="thawd-ray-"))
        self.address = f"127.0.0.1:{quiet_port()}"
        # No usage statistics, no dashboard; two processors suffice for everything.
        self.environ = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_ADDRESS": self.address,
            **environ,
        }
        self._arguments = arguments
        self._ray: Any = None
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def __enter__(self) -> RayCluster:
        port = self.address.rpartition(":")[2]
        temporary = f"--temp-dir={self.folder}/ray"
        self.add("--head", f"--port={port}", "--include-dashboard=false", temporary, *self._arguments)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in [*reversed(self.nodes)]:
            self.remove(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a node, and wait until it is there."""
        arguments = arguments or (f"--address={self.address}",)
        said = self.folder / f"node{self._count}"
        self._count += 1
        with open(said, "wb") as output:
            node = subprocess.Popen(
                [
                    RAY,
                    "start",
                    "--block",
                    "--num-cpus=1",
                    "--object-store-memory=80000000",
                    *_LEAN,
                    *_PORTS,
                    *arguments,
                ],
                env={name: text for name, text in self.environ.items() if name != "RAY_ADDRESS"},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.nodes.append(node)
        eventually(lambda: b"Ray runtime started" in said.read_bytes() or node.poll() is not None, what="a node of Ray")
        assert node.poll() is None, said.read_text()
        return node

    def remove(self, node: subprocess.Popen[bytes]) -> None:
        """Kill a node and everything that Ray has started there, as if its machine had lost power.

        The thawd of the node is not killed: it notices that its agent has gone.
        """
        self.nodes.remove(node)
        for pid in [node.pid, *_of_ray(node.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def thawd(self, project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of thawd that talks with this cluster."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "thawd", "cluster", "ray", *arguments],
            cwd=project,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=300,
        )

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Connect this process with the cluster inside the ``with`` block, so that `status` works.

        Ray reads its environment variables once in a process, so all clusters of a test session have the same token.
        """
        own = {name: self.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED")}
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, text in own.items():
                patch.setenv(name, text)
            with connected(self.address) as self._ray:
                yield

    def status(self) -> Status:
        """What the supervisor knows."""
        handle = self._ray.get_actor(SUPERVISOR, namespace=NAMESPACE)
        return msgspec.json.decode(self._ray.get(handle.status.remote(), timeout=60), type=Status)

    def supervisor_pid(self) -> int:
        """The process of the supervisor."""
        handle = self._ray.get_actor(SUPERVISOR, namespace=NAMESPACE)
        return int(self._ray.get(handle.pid.remote(), timeout=60))

    def nodes_alive(self) -> int:
        """How many nodes Ray has."""
        return sum(node["Alive"] for node in self._ray.nodes())

    def until_serving(self, count: int, *, without: Collection[int] = ()) -> list[AgentReport]:
        """Wait until exactly this number of nodes exists, and all serve.

        Args:
            count: number of nodes.
            without: processes that have ended. A supervisor asks agents once a second, so its knowledge may be older.

        Returns:
            Their reports, in the order of the machines' names.
        """

        def found() -> list[AgentReport] | None:
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                nodes = self.status().nodes
                reports = [node.report for node in nodes if node.report is not None]
                serving = [report for report in reports if report.state == "serving"]
                is_old = any(report.pid in without for report in serving)
                return serving if len(serving) == len(nodes) == count and not is_old else None
            return None

        reports: list[AgentReport] = eventually(found, what=f"{count} machines that serve")
        return sorted(reports, key=lambda report: report.machine)

    def said(self) -> str:
        """Everything that Ray has written into its logs and its output."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and "runtime_resources" not in path.parts]
        texts = []
        for path in files:
            with contextlib.suppress(OSError):
                texts.append(path.read_bytes().decode(errors="replace"))
        return "\n".join(texts)


def _of_ray(pid: int) -> list[int]:
    """The descendants of a process that Ray has started: all but thawd and its functions."""
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with contextlib.suppress(OSError):
            if b"thawd\0up" not in Path(f"/proc/{child}/cmdline").read_bytes():
                found += [child, *_of_ray(child)]
    return found


def parent_of(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_running(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
