"""`server.limits = "machine"`: the Lambda API accepts what AWS refuses and this machine can run."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .conftest import Project, Running, eventually

ROLE = "arn:aws:iam::000000000000:role/any"


def zipped(text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("app.py", text)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the machine's limits."""
    project = Project(Path(tmp_path_factory.mktemp("machine")))
    project.config('limits = "machine"\n')
    with project.up() as running:
        yield running


def create(running: Running, name: str, text: str = "def handler(event, context):\n    return 1\n", **more: Any) -> Any:
    client = running.client()
    runtime = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    given = {"Runtime": runtime, "Role": ROLE, "Handler": "app.handler", "Code": {"ZipFile": zipped(text)}, **more}
    client.create_function(FunctionName=name, **given)
    client.get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.05})
    return client


def test_variables_may_be_larger_than_4_kb(machine: Running) -> None:
    text = "import os\ndef handler(event, context):\n    return len(os.environ['LARGE'])\n"
    client = create(machine, "large", text, Environment={"Variables": {"LARGE": "x" * 100_000}})
    assert machine.invoke("large", {}) == (100_000, None)
    for size, words in ((200_000, "131071"), (2_000_000, "1048576")):
        with pytest.raises(ClientError, match=words):
            client.update_function_configuration(FunctionName="large", Environment={"Variables": {"LARGE": "x" * size}})


def test_a_function_may_have_more_than_five_layers(machine: Running) -> None:
    client = machine.client()
    arns = [
        client.publish_layer_version(LayerName=f"l{number}", Content={"ZipFile": zipped(f"n = {number}")})[
            "LayerVersionArn"
        ]
        for number in range(7)
    ]
    create(machine, "layered", Layers=arns)
    assert machine.invoke("layered", {}) == (1, None)


def test_snap_start_goes_with_provisioned_environments_and_a_large_tmp(machine: Running) -> None:
    client = create(machine, "snap", SnapStart={"ApplyOn": "PublishedVersions"}, EphemeralStorage={"Size": 1024})
    number = client.publish_version(FunctionName="snap")["Version"]
    client.get_waiter("published_version_active").wait(
        FunctionName="snap", Qualifier=number, WaiterConfig={"Delay": 0.05}
    )
    provisioned = {"FunctionName": "snap", "Qualifier": number}
    client.put_provisioned_concurrency_config(**provisioned, ProvisionedConcurrentExecutions=1)
    eventually(
        lambda: client.get_provisioned_concurrency_config(**provisioned)["Status"] == "READY",
        what="the provisioned environment",
    )


def test_networks_are_kept_without_being_looked_up(machine: Running) -> None:
    client = create(machine, "vpc", VpcConfig={"SubnetIds": ["subnet-1"], "SecurityGroupIds": ["sg-1"]})
    shown = client.get_function_configuration(FunctionName="vpc")["VpcConfig"]
    assert shown == {
        "SubnetIds": ["subnet-1"],
        "SecurityGroupIds": ["sg-1"],
        "VpcId": "",
        "Ipv6AllowedForDualStack": False,
    }
