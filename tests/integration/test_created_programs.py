"""Functions with their own programs, created through the Lambda API: Node, a bootstrap, and both in layers."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Project, Running, eventually

ROLE = "arn:aws:iam::000000000000:role/any"
BOOTSTRAP = """#!/bin/sh
api="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation"
headers=$(mktemp)
while event=$(curl -sSf -D "$headers" "$api/next"); do
    id=$(sed -n 's/^lambda-runtime-aws-request-id: *\\([^\\r]*\\).*/\\1/ip' "$headers")
    version=$AWS_LAMBDA_FUNCTION_VERSION
    curl -sS "$api/$id/response" -d "{\\"event\\": $event, \\"version\\": \\"$version\\"}" > /dev/null
done
"""
EXTENSION = """#!/bin/sh
api="http://$AWS_LAMBDA_RUNTIME_API/2020-01-01/extension"
name="Lambda-Extension-Name: $(basename "$0")"
id=$(curl -sS -D - -o /dev/null "$api/register" -H "$name" -d '{"events": ["INVOKE"]}' |
    sed -n 's/^lambda-extension-identifier: *\\([^\\r]*\\).*/\\1/ip')
while event=$(curl -sSf "$api/event/next" -H "Lambda-Extension-Identifier: $id"); do
    echo "extension of a layer: $event"
done
"""


def zipped(files: dict[str, str]) -> bytes:
    """Return a zip file of executable files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
    return made.getvalue()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("created"))
    project.code("def handler(event, context):\n    return 1\n")
    node = shutil.which("node")
    project.config(
        '[functions.other]\nhandler = "app.handler"\nsnapshot = false\n'
        + '[runtimes]\n"nodejs18.x" = "/no/such/node"\n'
        + (f'"nodejs22.x" = "{node}"\n' if node else "")
    )
    with project.up() as server:
        yield server


def create(running: Running, name: str, runtime: str, files: dict[str, str], **options: Any) -> dict[str, Any]:
    client = running.client()
    client.create_function(
        FunctionName=name,
        Runtime=runtime,
        Role=ROLE,
        Code={"ZipFile": zipped(files)},
        **{"Handler": "index.handler", "Timeout": 10, **options},
    )

    def settled() -> Any:
        configuration = client.get_function_configuration(FunctionName=name)
        return configuration["State"] != "Pending" and configuration

    found: dict[str, Any] = eventually(settled, what=f"the publication of {name}")
    return found


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on PATH")
def test_a_node_function_is_created_invoked_changed_and_published(running: Running) -> None:
    code = {"index.js": "exports.handler = async (event) => ({ event, n: 1 });"}
    configuration = create(running, "node", "nodejs22.x", code)
    assert (configuration["State"], configuration["Runtime"]) == ("Active", "nodejs22.x")
    assert running.invoke("node", {"a": 1}) == ({"event": {"a": 1}, "n": 1}, None)
    client = running.client()
    version = client.publish_version(FunctionName="node")["Version"]

    changed = {"index.js": "exports.handler = (event, context, callback) => callback(null, 2);"}
    client.update_function_code(FunctionName="node", ZipFile=zipped(changed))
    client.get_waiter("function_updated_v2").wait(FunctionName="node")

    assert running.invoke("node", {}) == (2, None)
    assert running.invoke("node", {}, Qualifier=version)[0]["n"] == 1


def test_a_bootstrap_is_told_its_version(running: Running) -> None:
    create(running, "program", "provided.al2023", {"bootstrap": BOOTSTRAP})

    version = running.client().publish_version(FunctionName="program")["Version"]

    assert running.invoke("program", [1]) == ({"event": [1], "version": "$LATEST"}, None)
    assert running.invoke("program", [1], Qualifier=version) == ({"event": [1], "version": version}, None)


def test_bootstrap_and_extension_may_come_from_a_layer(running: Running) -> None:
    content = {"ZipFile": zipped({"bootstrap": BOOTSTRAP, "extensions/watcher": EXTENSION})}
    layer = running.client().publish_layer_version(LayerName="runtime", Content=content)["LayerVersionArn"]
    create(running, "layered", "provided.al2", {"data.txt": "no program"}, Layers=[layer])

    assert running.invoke("layered", {})[0]["event"] == {}

    log = running.project.data / "logs" / "layered.log"
    line = 'extension of a layer: {"eventType":"INVOKE"'
    eventually(lambda: log.exists() and line in log.read_text(), what="its line in the log")


def test_a_function_without_its_bootstrap_fails_to_be_published(running: Running) -> None:
    configuration = create(running, "lacking", "provided.al2023", {"other": "no program"})

    assert configuration["State"] == "Failed"
    assert "bootstrap" in configuration["StateReason"]


@pytest.mark.parametrize(
    ("runtime", "told"),
    [
        ("nodejs18.x", r"\[runtimes\], \"nodejs18.x\" = \"/path/to/node\""),
        ("ruby3.3", "the supported runtimes are python3.9, "),
    ],
)
def test_a_runtime_that_is_not_here_is_refused_at_creation(running: Running, runtime: str, told: str) -> None:
    client = running.client()
    with pytest.raises(client.exceptions.InvalidParameterValueException, match=told):
        client.create_function(
            FunctionName="absent",
            Runtime=runtime,
            Role=ROLE,
            Handler="index.handler",
            Code={"ZipFile": zipped({"index.js": ""})},
        )
    assert "absent" not in json.dumps([one["FunctionName"] for one in client.list_functions()["Functions"]])
