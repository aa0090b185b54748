"""The configurations in deploy/ray have the structure that Ray and Kubernetes expect. Nothing is started."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from thawd.cli.program import main

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "ray"
# What the API reference of KubeRay 1.6 calls the fields of its RayCluster, as far as our file may use them.
TEMPLATE = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers"],
            "properties": {
                "restartPolicy": {"const": "Never"},
                "terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "object", "required": ["name", "image", "resources"]},
                },
            },
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}
START = {"type": "object", "additionalProperties": {"type": "string"}}
RAY_CLUSTER = {
    "type": "object",
    "required": ["rayVersion", "headGroupSpec", "workerGroupSpecs"],
    "properties": {
        "rayVersion": {"type": "string"},
        "authOptions": {
            "type": "object",
            "properties": {"mode": {"enum": ["disabled", "token"]}, "secretName": {"type": "string"}},
            "additionalProperties": False,
        },
        "enableInTreeAutoscaling": {"type": "boolean"},
        "autoscalerOptions": {
            "type": "object",
            "properties": {"version": {"enum": ["v1", "v2"]}, "idleTimeoutSeconds": {"type": "integer"}},
            "additionalProperties": False,
        },
        "headGroupSpec": {
            "type": "object",
            "required": ["rayStartParams", "template"],
            "properties": {"rayStartParams": START, "template": TEMPLATE},
            "additionalProperties": False,
        },
        "workerGroupSpecs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                "properties": {
                    "groupName": {"type": "string"},
                    "replicas": {"type": "integer"},
                    "minReplicas": {"type": "integer", "minimum": 0},
                    "maxReplicas": {"type": "integer", "minimum": 1},
                    "rayStartParams": START,
                    "template": TEMPLATE,
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}


def kubernetes() -> dict[str, dict[str, Any]]:
    documents = list(yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text()))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents}


def launcher() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "aws.yaml").read_text())
    return found


def test_the_cluster_of_kuberay_has_the_fields_of_its_api_asks_for_a_token_and_scales_from_no_worker() -> None:
    documents = kubernetes()
    cluster = documents["RayCluster/thawd"]
    assert cluster["apiVersion"] == "ray.io/v1"
    spec = cluster["spec"]
    jsonschema.validate(spec, RAY_CLUSTER)
    token = documents[f"Secret/{spec['authOptions']['secretName']}"]
    assert spec["authOptions"]["mode"] == "token" and "auth_token" in token["stringData"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        # KubeRay passes the value through a shell.
        [text] = shlex.split(group["rayStartParams"]["resources"])
        assert json.loads(text.replace('\\"', '"')) == {"thawd": 1}
        [container] = group["template"]["spec"]["containers"]
        assert {"secretRef": {"name": "thawd"}} in container["envFrom"]
    assert [group["minReplicas"] for group in spec["workerGroupSpecs"]] == [0]


def test_only_thawds_port_is_open_to_clients_in_kubernetes() -> None:
    documents = kubernetes()
    rules = documents["NetworkPolicy/thawd"]["spec"]["ingress"]
    assert [rule["ports"] for rule in rules if "from" not in rule] == [[{"port": 8350}]]
    assert [port["targetPort"] for port in documents["Service/thawd"]["spec"]["ports"]] == ["thawd"]


def test_the_launcher_starts_nodes_with_the_resource_and_without_secrets_in_commands() -> None:
    found = launcher()
    types = found["available_node_types"]
    assert found["head_node_type"] in types
    assert all(each["resources"]["thawd"] == 1 for each in types.values())
    assert sum(each.get("max_workers", 0) for each in types.values()) == found["max_workers"]
    commands = "\n".join(found["head_start_ray_commands"] + found["worker_start_ray_commands"])
    assert "TOKEN" not in commands and "KEY" not in commands


def test_the_launchers_file_matches_rays_own_schema() -> None:
    ray = importlib.util.find_spec("ray")
    if ray is None or ray.origin is None:
        pytest.skip("Ray is not installed: pip install 'thawd[ray]'")
    schema = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(launcher(), schema)
    broken = launcher() | {"idle_minutes": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_commands_in_the_files_have_options_that_exist() -> None:
    group = main.commands["cluster"]
    assert isinstance(group, click.Group)
    ray = group.commands["ray"]
    assert isinstance(ray, click.Group)
    options = {name for parameter in ray.commands["up"].params for name in parameter.opts}
    for file in ("kuberay.yaml", "aws.yaml"):
        text = " ".join(line.lstrip("# ").rstrip("\\\n") for line in (FOLDER / file).read_text().splitlines())
        command = text.partition("thawd cluster ray up ")[2][:90]
        used = [word for word in command.replace("'", " ").split() if word.startswith("-")]
        assert used and set(used) <= options, used
