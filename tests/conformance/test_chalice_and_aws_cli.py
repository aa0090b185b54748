"""Chalice and the AWS CLI, as they come, against a real server: from nothing to an invocation, a change and a deletion.

Source: AWS Chalice documentation, "Command line"; AWS CLI command reference, "cloudformation deploy".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import deployment_clients, shell_programs
from tests.clients import client_of
from tests.integration.apis import request
from tests.integration.conftest import Project, Running
from tests.integration.stack_operations import stack_status

from .conftest import RUNTIME

APP = """
from chalice import Chalice

app = Chalice(app_name="paint")

@app.route("/colours/{name}")
def colour(name):
    return {"colour": name, "shade": "SHADE"}

@app.lambda_function()
def mixed(event, context):
    return {"mixed": event["a"] + event["b"], "shade": "SHADE"}
"""
TEMPLATE = f"""
Parameters:
  Colour: {{Type: String, Default: red}}
Resources:
  Painter:
    Type: AWS::Lambda::Function
    Properties:
      Runtime: {RUNTIME}
      Handler: app.handler
      Role: arn:aws:iam::000000000000:role/anybody
      Code: src
      Environment:
        Variables:
          COLOUR: !Ref Colour
Outputs:
  Name:
    Value: !Ref Painter
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("server"))
    project.config("")
    with project.up("--aws") as served:
        yield served


def test_chalice_deploys_invokes_changes_and_deletes_an_app(running: Running, tmp_path: Path) -> None:
    chalice = deployment_clients.Client(deployment_clients.chalice(), running.url, tmp_path)
    (tmp_path / ".chalice").mkdir()
    config = {"version": "2.0", "app_name": "paint", "stages": {"dev": {"api_gateway_stage": "api"}}}
    (tmp_path / ".chalice" / "config.json").write_text(json.dumps(config))
    (tmp_path / "requirements.txt").write_text("")
    for shade in ("light", "dark"):
        (tmp_path / "app.py").write_text(APP.replace("SHADE", shade))
        chalice("deploy", "--stage", "dev")
        assert running.invoke("paint-dev-mixed", {"a": 1, "b": 2})[0] == {"mixed": 3, "shade": shade}
        address = chalice("url", "--stage", "dev").strip()
        api = address.split("//")[1].split(".")[0]
        answer = request(running.url, f"/_aws/execute-api/{api}/api/colours/red")
        assert answer.json == {"colour": "red", "shade": shade}
    chalice("delete", "--stage", "dev")
    assert running.client().list_functions()["Functions"] == []
    assert client_of(running.url, "apigateway").get_rest_apis()["items"] == []


def test_the_aws_cli_packages_deploys_changes_and_deletes_a_stack(running: Running, tmp_path: Path) -> None:
    aws = deployment_clients.Client(shell_programs.command("aws"), running.url, tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    client_of(running.url, "s3").create_bucket(Bucket="code")
    stacks = client_of(running.url, "cloudformation")
    deploys = ("cloudformation", "deploy", "--stack-name", "paint", "--template-file", "packaged.yaml")
    for colour in ("red", "blue"):
        source = f"import os\ndef handler(event, context):\n    return [os.environ['COLOUR'], '{colour}']\n"
        (tmp_path / "src" / "app.py").write_text(source)
        package = ("cloudformation", "package", "--template-file", "template.yaml", "--s3-bucket", "code")
        aws(*package, "--output-template-file", "packaged.yaml")
        assert "Successfully created/updated stack" in aws(*deploys, "--parameter-overrides", f"Colour={colour}")
        (output,) = stacks.describe_stacks(StackName="paint")["Stacks"][0]["Outputs"]
        assert running.invoke(output["OutputValue"])[0] == [colour, colour]
    same = ("--parameter-overrides", "Colour=blue", "--no-fail-on-empty-changeset")
    assert "No changes to deploy" in aws(*deploys, *same)
    aws("cloudformation", "delete-stack", "--stack-name", "paint")
    assert stack_status(stacks, "paint") == "DELETE_COMPLETE"
    assert running.client().list_functions()["Functions"] == []
