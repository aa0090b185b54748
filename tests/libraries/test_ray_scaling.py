"""Ray's autoscaler adds machines when requests wait for room, and removes them afterwards.

Its provider is Ray's fake one, whose nodes are processes of this machine: the autoscaler is real, the machines are not.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_of
from tests.integration.conftest import eventually
from tests.integration.postgresql import Postgresql
from tests.libraries.ray_clusters import RayCluster, is_running
from tests.libraries.test_ray import CODE, invoke

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'thawd[ray]'"),
]

CONFIG = """
[server]
port = 0
state = "${THAWD_TEST_STATE}"
durability = "cluster"
max_environments = 1

[cluster]

[functions.app]
handler = "app.handler"
snapshot = false
timeout_s = 300
"""
# Source: ray.autoscaler._private.fake_multi_node.node_provider.
HEAD = "f" * 51 + "00000"
VARIABLES = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}


def autoscaling(address: str) -> dict[str, Any]:
    """The configuration of Ray's autoscaler: a head node, and up to two other nodes."""
    provider = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    lists = ("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands")
    lists += ("head_start_ray_commands", "worker_start_ray_commands", "rsync_exclude", "rsync_filter")
    resources = {"CPU": 1, "thawd": 1, "object_store_memory": 80_000_000}
    return {
        "cluster_name": "fake",
        "max_workers": 2,
        "idle_timeout_minutes": 0.05,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": provider,
            "gcs_address": address,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "head_node_id": HEAD,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": resources, "node_config": {}, "max_workers": 0},
            "other": {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
        "docker": {},
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        **{name: [] for name in lists},
    }


def test_machines_come_when_requests_wait_for_room_and_go_afterwards(tmp_path: Path) -> None:
    project, gate = tmp_path / "project", tmp_path / "gate"
    project.mkdir()
    (project / "app.py").write_text(CODE)
    (project / "thawd.toml").write_text(CONFIG)
    settings = tmp_path / "autoscaling.json"
    with Postgresql() as server:
        environ = {"THAWD_TEST_STATE": server.url(), "HOME": str(tmp_path), **VARIABLES}
        made = RayCluster(environ, '--resources={"thawd": 1}', f"--autoscaling-config={settings}")
        settings.write_text(json.dumps(autoscaling(made.address)))
        with made as cluster, cluster.connected():
            # Given a machine that runs one invocation at a time
            options = ("--resource", "thawd", "--most", "2", "--idle-minutes", "0.05", "--wait-s", "250")
            started = cluster.thawd(project, "up", *options)
            assert started.returncode == 0, started.stderr
            [first] = cluster.until_serving(1)
            # When a second event waits for room
            client, files = client_of(first.url, "lambda"), [tmp_path / "a", tmp_path / "b"]
            for file in files:
                event = json.dumps({"gate": str(gate), "file": str(file)})
                client.invoke(FunctionName="app", InvocationType="Event", Payload=event)
            # Then Ray adds a machine, and it serves
            both = cluster.until_serving(2)
            assert cluster.status().wanted == 2
            gate.touch()
            eventually(lambda: all(file.exists() for file in files), what="that both events have run")
            # When nothing waits any more, it goes, and the first one stays
            assert cluster.until_serving(1) == [first]
            [second] = [report for report in both if report != first]
            eventually(lambda: not is_running(second.pid), what="the end of the second machine")
            eventually(lambda: cluster.nodes_alive() == 1, what="that Ray has removed the node")
            assert "machine" in invoke(first.url, "app", {})
