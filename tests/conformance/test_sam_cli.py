"""AWS's SAM CLI, as it comes, against a real server: a stack from nothing to an invocation, an update and a deletion.

Source: AWS SAM CLI command reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import deployment_clients, shell_programs
from tests.integration.conftest import Project, Running

from .conftest import RUNTIME

SOURCE = """
import os

def handler(event, context):
    print("painting", event["picture"])
    return {"colour": os.environ["COLOUR"], "picture": event["picture"]}
"""
TEMPLATE = f"""
AWSTemplateFormatVersion: "2010-09-09"
Transform: AWS::Serverless-2016-10-31
Parameters:
  Colour: {{Type: String, Default: red}}
Resources:
  Painter:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: {RUNTIME}
      Handler: app.handler
      CodeUri: src
      AutoPublishAlias: live
      Environment:
        Variables:
          COLOUR: !Ref Colour
Outputs:
  Name:
    Value: !Ref Painter
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    project = Project(tmp_path)
    project.config("")
    with project.up("--aws") as served:
        yield served


@pytest.fixture
def sam(running: Running, tmp_path: Path) -> Sam:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text(SOURCE)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    return Sam(running, tmp_path)


class Sam(deployment_clients.Client):
    """The program `sam`, in a folder with a template.

    Args:
        running: the server.
        folder: the folder.
    """

    def __init__(self, running: Running, folder: Path) -> None:
        super().__init__(shell_programs.command("sam", deployment_clients.sam()), running.url, folder)

    def deploy(self, *more: str, fails: bool = False) -> str:
        given = (
            "--stack-name",
            "paint",
            "--resolve-s3",
            "--no-confirm-changeset",
            "--capabilities",
            "CAPABILITY_IAM",
            "--no-progressbar",
            *more,
        )
        return self("deploy", *given, fails=fails)

    def invoke(self) -> dict[str, str]:
        event = json.dumps({"picture": "a boat"})
        answer = self("remote", "invoke", "Painter", "--stack-name", "paint", "--event", event)
        found: dict[str, str] = json.loads(answer.splitlines()[-1])
        return found


def test_a_stack_is_deployed_invoked_read_changed_and_deleted(sam: Sam, running: Running) -> None:
    assert "Successfully created/updated stack - paint" in sam.deploy()
    assert sam.invoke() == {"colour": "red", "picture": "a boat"}
    resources = json.loads(sam("list", "resources", "--stack-name", "paint", "--output", "json"))
    (output,) = json.loads(sam("list", "stack-outputs", "--stack-name", "paint", "--output", "json"))
    found = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in resources}
    assert found["Painter"] == output["OutputValue"]
    assert {"PainterAliaslive", "PainterRole"} < found.keys()
    assert "painting a boat" in sam("logs", "--stack-name", "paint", "--name", "Painter")
    sam.deploy("--parameter-overrides", "Colour=blue")
    assert running.invoke(found["Painter"], {"picture": "a boat"})[0] == {"colour": "blue", "picture": "a boat"}
    assert "No changes to deploy" in sam.deploy("--parameter-overrides", "Colour=blue", fails=True)
    sam("delete", "--stack-name", "paint", "--no-prompts")
    assert running.client().list_functions()["Functions"] == []
    assert "does not exist" in sam("remote", "invoke", "Painter", "--stack-name", "paint", fails=True)
