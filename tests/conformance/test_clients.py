"""The clients that people use, against a real server: boto3, AWS's SDK for JavaScript, and what Terraform calls.

The AWS CLI runs in `tests/integration/test_walk_through.py`.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.clients import KEYS, REGION

from .conftest import CODE, OTHER_CODE, ROLE, RUNTIME, Lambda

ARN = "arn:aws:lambda:us-east-1:000000000000:function:"
NODE_CLIENT = Path(__file__).with_name("node_client")
BUILD = Path(__file__).parents[2] / "build" / "node-client"


@pytest.fixture(scope="module")
def node_client() -> Path:
    """A folder with the program and AWS's SDK for JavaScript, which npm installs once."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # two workers may come at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        for file in NODE_CLIENT.iterdir():
            shutil.copy(file, BUILD)
        if not (BUILD / "node_modules" / "@aws-sdk" / "client-lambda").is_dir():
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
            done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode:
                pytest.skip(f"npm could not install AWS's SDK: {done.stderr.strip()[-200:]}")
    return BUILD


# Source: documentation of @aws-sdk/client-lambda


def test_the_sdk_for_javascript_does_what_people_do_every_day(aws: Lambda, node_client: Path, tmp_path: Path) -> None:
    archive = tmp_path / "app.zip"
    archive.write_bytes(CODE)
    command = ["node", str(node_client / "everyday.mjs"), aws.running.url, str(archive), RUNTIME]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "created": ["Pending", "$LATEST", 201, True],
        "invoked": [200, "$LATEST", {"a": 1}],
        "log": True,
        "failed": ["Unhandled", "ValueError"],
        "event": 202,
        "stream": "$LATEST",
        "complete": None,
        "alias": {"AdditionalVersionWeights": {"2": 0.5}},
        "variable": "blue",
        "reserved": 2,
        "events": [0, True],
        "policy": 1,
        "url": 200,
        "tags": {"made": "by node", "more": "yes"},
        "versions": ["$LATEST", "1", "2"],
        "limit": 52_428_800,
        "conflict": [True, 409, f"Alias already exists: {ARN}from-node:live"],
        "missing": [True, 404, f"Function not found: {ARN}from-node"],
    }


# Source: botocore's waiters and paginators, as they are


def test_boto3_as_it_comes_waits_and_pages(aws: Lambda) -> None:
    client = boto3.client("lambda", endpoint_url=aws.running.url, region_name=REGION, **KEYS)
    name = "from-boto3"
    client.create_function(FunctionName=name, Runtime=RUNTIME, Role=ROLE, Handler="app.handler", Code={"ZipFile": CODE})
    quick = {"WaiterConfig": {"Delay": 1, "MaxAttempts": 60}}
    for waiter in (
        "function_exists",
        "function_active",
        "function_active_v2",
        "function_updated",
        "function_updated_v2",
    ):
        client.get_waiter(waiter).wait(FunctionName=name, **quick)
    for text in ("one", "two", "three"):
        client.update_function_configuration(FunctionName=name, Description=text)
        client.get_waiter("function_updated_v2").wait(FunctionName=name, **quick)
        version = client.publish_version(FunctionName=name)["Version"]
        client.get_waiter("published_version_active").wait(FunctionName=name, Qualifier=version, **quick)
        client.create_alias(FunctionName=name, Name=text, FunctionVersion=version)
    paged = {"PaginationConfig": {"PageSize": 1}}
    for operation, field, expected in (
        ("list_versions_by_function", "Versions[].Version", ["$LATEST", "1", "2", "3"]),
        ("list_aliases", "Aliases[].Name", ["one", "three", "two"]),
    ):
        pages = client.get_paginator(operation).paginate(FunctionName=name, **paged)
        assert list(pages.search(field)) == expected
    assert json.load(client.invoke(FunctionName=f"{name}:two", Payload="{}")["Payload"])["version"] == "2"
    client.delete_function(FunctionName=name)
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_function(FunctionName=name)


class Terraform:
    """Calls Lambda as Terraform's AWS provider does: it polls one field, and any value that it does not expect fails.

    Source: internal/service/lambda of hashicorp/terraform-provider-aws: function.go, alias.go, permission.go,
    function_url.go, provisioned_concurrency_config.go.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    def wait(self, name: str, field: str, *, pending: str, target: str) -> None:
        """Poll GetFunction until a field has its target value."""
        for _ in range(600):
            found = self.client.get_function(FunctionName=name)["Configuration"].get(field, "")
            if found == target:
                return
            assert found == pending, f"unexpected {field}: {found}"
            time.sleep(0.05)  # as the provider does between two polls
        raise AssertionError(f"{field} stayed {pending}")

    def read(self, name: str) -> dict[str, Any]:
        """Read everything that the provider's state of a function contains."""
        found = self.client.get_function(FunctionName=name)
        pages = self.client.get_paginator("list_versions_by_function").paginate(FunctionName=name)
        latest = list(pages.search("Versions[]"))[-1]
        signing = self.client.get_function_code_signing_config(FunctionName=name)
        configuration = found["Configuration"]
        return {
            "arn": configuration["FunctionArn"],
            "qualified_arn": latest["FunctionArn"],
            "version": latest["Version"],
            "reserved": found.get("Concurrency", {}).get("ReservedConcurrentExecutions", -1),
            "code_signing_config_arn": signing.get("CodeSigningConfigArn", ""),
            "tags": found.get("Tags", {}),
            "vpc": configuration.get("VpcConfig"),
            "environment": configuration.get("Environment", {}).get("Variables"),
            "layers": configuration.get("Layers"),
            "logging": configuration["LoggingConfig"],
            "snap_start": configuration["SnapStart"],
            "tracing": configuration["TracingConfig"]["Mode"],
            "architectures": configuration["Architectures"],
            "size": configuration["CodeSize"],
        }


def test_the_calls_of_terraform_lead_to_a_stable_state(aws: Lambda) -> None:
    client, name = aws.client, "from-terraform"
    terraform = Terraform(client)
    client.create_function(
        FunctionName=name,
        Runtime=RUNTIME,
        Role=ROLE,
        Handler="app.handler",
        Code={"ZipFile": CODE},
        MemorySize=128,
        Timeout=3,
        PackageType="Zip",
        Publish=True,
        Description="",
        EphemeralStorage={"Size": 512},
        TracingConfig={"Mode": "PassThrough"},
        Environment={"Variables": {"COLOUR": "red"}},
        Tags={"team": "vision"},
    )
    terraform.wait(name, "State", pending="Pending", target="Active")
    state = terraform.read(name)
    assert state == {
        "arn": f"{ARN}{name}",
        "qualified_arn": f"{ARN}{name}:1",
        "version": "1",
        "reserved": -1,
        "code_signing_config_arn": "",
        "tags": {"team": "vision"},
        "vpc": None,
        "environment": {"COLOUR": "red"},
        "layers": None,
        "logging": {"LogFormat": "Text", "LogGroup": f"/aws/lambda/{name}"},
        "snap_start": {"ApplyOn": "None", "OptimizationStatus": "Off"},
        "tracing": "PassThrough",
        "architectures": ["x86_64"],
        "size": len(CODE),
    }
    assert terraform.read(name) == state, "a second plan finds nothing to change"
    client.update_function_configuration(
        FunctionName=name,
        Environment={"Variables": {}},
        MemorySize=256,
        VpcConfig={"SubnetIds": [], "SecurityGroupIds": [], "Ipv6AllowedForDualStack": False},
        DeadLetterConfig={"TargetArn": ""},
        FileSystemConfigs=[],
        KMSKeyArn="",
        Layers=[],
    )
    terraform.wait(name, "LastUpdateStatus", pending="InProgress", target="Successful")
    client.update_function_code(FunctionName=name, ZipFile=OTHER_CODE, Architectures=["arm64"])
    terraform.wait(name, "LastUpdateStatus", pending="InProgress", target="Successful")
    published = client.publish_version(FunctionName=name)["Version"]
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=3)
    changed = terraform.read(name)
    expected = {
        "version": "2",
        "qualified_arn": f"{ARN}{name}:2",
        "reserved": 3,
        "vpc": {"SubnetIds": [], "SecurityGroupIds": [], "VpcId": "", "Ipv6AllowedForDualStack": False},
        "environment": {},
        "architectures": ["arm64"],
        "size": len(OTHER_CODE),
    }
    assert changed == {**state, **expected}
    client.create_alias(FunctionName=name, Name="live", FunctionVersion=published, Description="")
    alias = client.get_alias(FunctionName=name, Name="live")
    assert (alias["FunctionVersion"], alias["AliasArn"]) == ("2", f"{ARN}{name}:live")
    client.add_permission(
        FunctionName=name, StatementId="s", Action="lambda:InvokeFunction", Principal="s3.amazonaws.com"
    )
    [statement] = json.loads(client.get_policy(FunctionName=name)["Policy"])["Statement"]
    assert (statement["Sid"], statement["Resource"]) == ("s", f"{ARN}{name}")
    client.create_function_url_config(FunctionName=name, AuthType="NONE", InvokeMode="BUFFERED")
    assert client.get_function_url_config(FunctionName=name)["AuthType"] == "NONE"
    given = {"FunctionName": name, "Qualifier": "live"}
    client.put_provisioned_concurrency_config(**given, ProvisionedConcurrentExecutions=1)
    for _ in range(600):
        status = client.get_provisioned_concurrency_config(**given)["Status"]
        if status == "READY":
            break
        assert status == "IN_PROGRESS"
        time.sleep(0.05)  # as the provider does between two polls
    else:
        raise AssertionError("the environment was not provisioned")
    client.delete_provisioned_concurrency_config(**given)
    client.delete_function_url_config(FunctionName=name)
    client.remove_permission(FunctionName=name, StatementId="s")
    client.delete_alias(FunctionName=name, Name="live")
    client.delete_function_concurrency(FunctionName=name)
    client.delete_function(FunctionName=name)
    for operation in ("get_function", "get_policy", "get_function_url_config"):
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            getattr(client, operation)(FunctionName=name)
