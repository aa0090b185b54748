"""thawd on the nodes of a Ray cluster: Ray starts and restarts it, and requests go from thawd to thawd."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError

from tests.clients import client_of
from tests.integration.conftest import eventually
from tests.integration.postgresql import PASSWORD, Postgresql
from tests.libraries.ray_clusters import TOKEN, RayCluster, is_running, parent_of

# Ray reads its environment variables when it is imported, so it is not imported here.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'thawd[ray]'"),
]

CODE = """
import os, pathlib, time
def handler(event, context):
    if "file" in event:
        pathlib.Path(event["file"]).touch()
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    return {"machine": os.environ["PWD"].split("/code/")[0].rpartition("/")[2], "variables": list(os.environ)}
"""
CONFIG = """
[server]
port = 0
state = "${THAWD_TEST_STATE}"
durability = "cluster"

[cluster]

[functions.app]
handler = "app.handler"
snapshot = false
timeout_s = 300

[functions.limited]
handler = "app.handler"
snapshot = false
timeout_s = 300
reserved_concurrency = 2
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with Postgresql() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(server: Postgresql, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    environ = {"THAWD_TEST_STATE": server.url(schema="ray"), "HOME": str(tmp_path_factory.mktemp("home"))}
    with RayCluster(environ) as running:
        running.add()
        with running.connected():
            yield running


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "app.py").write_text(CODE)
    # A file that would replace a module of Python if Python searched the project's folder for modules of thawd.
    (root / "queue.py").write_text("raise RuntimeError('thawd has imported a file of the project')\n")
    (root / "thawd.toml").write_text(CONFIG)
    return root


def invoke(url: str, function: str, event: dict[str, Any]) -> dict[str, Any]:
    answer = client_of(url, "lambda", read_timeout=280).invoke(FunctionName=function, Payload=json.dumps(event))
    document: dict[str, Any] = json.loads(answer["Payload"].read())
    return document


def variables_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_each_node_runs_a_machine_and_ray_restarts_it(cluster: RayCluster, project: Path, tmp_path: Path) -> None:
    # Given nodes of Ray
    started = cluster.thawd(project, "up", "--wait-s", "280")
    assert started.returncode == 0, started.stderr
    # Then each serves requests, and a limit of the cluster holds over them
    first, second = cluster.until_serving(2)
    gate, files = tmp_path / "gate", [tmp_path / "a", tmp_path / "b"]
    with ThreadPoolExecutor(2) as threads:
        events = [{"gate": str(gate), "file": str(file)} for file in files]
        running = [threads.submit(invoke, first.url, "limited", event) for event in events]
        eventually(lambda: all(file.exists() for file in files), what="as many invocations as the limit allows")
        with pytest.raises(ClientError, match="TooManyRequestsException"):
            invoke(second.url, "limited", {})
        gate.touch()
        for each in running:
            each.result()
    # And nothing of Ray reaches functions or thawd, and no token of thawd's cluster or password is in Ray's logs
    found = invoke(second.url, "app", {})
    assert not [name for name in found["variables"] if name.startswith("RAY_")]
    assert b"RAY_" not in variables_of(first.pid) and b"THAWD_JOIN_TOKEN" not in variables_of(second.pid)
    said = cluster.said()
    assert "thawd1-" not in said and quote(PASSWORD, safe="") not in said and TOKEN not in said
    # When a node comes, it joins
    node = cluster.add()
    reports = cluster.until_serving(3)
    # When an agent and a thawd are killed, Ray and the agent start them again, under their names
    os.kill(parent_of(reports[0].pid), signal.SIGKILL)
    os.kill(reports[1].pid, signal.SIGKILL)
    killed = [report.pid for report in reports[:2]]
    eventually(lambda: not any(map(is_running, killed)), what="that both thawds have ended")
    again = cluster.until_serving(3, without=killed)
    assert [report.machine for report in again] == [report.machine for report in reports]
    assert again[2] == reports[2]
    # When the supervisor is killed, its successor finds the agents
    old = cluster.supervisor_pid()
    os.kill(old, signal.SIGKILL)
    assert cluster.until_serving(3) == again
    # When a node is lost, its machine ends, and the others serve
    cluster.remove(node)
    left = cluster.until_serving(2)
    gone = [report for report in again if report not in left]
    assert len(gone) == 1
    eventually(lambda: not is_running(gone[0].pid), what="the end of a thawd without agent")
    assert invoke(left[0].url, "app", {})["machine"] and invoke(left[1].url, "app", {})["machine"]
    # When the project changes, machines are replaced one after the other
    (project / "app.py").write_text(CODE.replace('{"machine"', '{"changed": 1, "machine"'))
    changed = cluster.thawd(project, "up", "--wait-s", "280")
    assert changed.returncode == 0, changed.stderr
    new = cluster.until_serving(2)
    assert {report.machine for report in new} == {report.machine for report in left}
    assert invoke(new[0].url, "app", {})["changed"] == invoke(new[1].url, "app", {})["changed"] == 1
    # When thawd is stopped, Ray goes on without it
    stopped = cluster.thawd(project, "down", "--wait-s", "280")
    assert stopped.returncode == 0, stopped.stderr
    assert not any(is_running(report.pid) for report in new)
    assert cluster.thawd(project, "status").stderr.startswith("thawd: thawd does not run on this Ray cluster")
