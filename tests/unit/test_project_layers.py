"""Layers of other accounts in templates: named, or replaced by what the user has."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.artifacts import BuildTools, Packaged, package
from thawd.deploy.projects.foreign_layers import layer_key
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import ProjectError, ProjectOptions

pytestmark = pytest.mark.in_memory

_ARN = "arn:aws:lambda:${AWS::Region}:017000801446:layer:AWSLambdaPowertoolsPythonV2:32"
_TEMPLATE = f"""
Transform: AWS::Serverless-2016-10-31
Globals: {{Function: {{CodeUri: code, Layers: [!Sub '{_ARN}']}}}}
Resources:
  Own: {{Type: AWS::Serverless::LayerVersion, Properties: {{ContentUri: code}}}}
  F: {{Type: AWS::Serverless::Function, Properties: {{Layers: [!Ref Own, !Sub '{_ARN}']}}}}
  G:
    Type: AWS::Lambda::Function
    Properties:
      Code: code
      Layers:
        - {{'Fn::Join': ['', ['arn:aws:lambda:', {{Ref: 'AWS::Region'}}, ':175033217214:layer:graphics-magick:2']]}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("code/app.py", "powertools/python/aws_lambda_powertools/__init__.py", "other/python/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "template.yaml").write_text(_TEMPLATE)
    return tmp_path


def _packaged(folder: Path, layers: dict[str, Path]) -> Packaged:
    [stack] = read_project(folder / "template.yaml", ProjectOptions()).stacks
    tools = BuildTools(lambda requirements, runtime, architecture: requirements, lambda image: "", layers=layers)
    return package(stack, tools)


def _content(packaged: Packaged, resource: dict[str, Any]) -> list[str]:
    content = packaged.objects[resource["Properties"]["Content"]["S3Key"]]
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def test_a_layer_of_another_account_is_named_with_the_way_out(folder: Path) -> None:
    notes = _packaged(folder, {}).notes
    assert [note.partition(" belongs")[0] for note in notes] == [
        "F: the layer 017000801446:layer:AWSLambdaPowertoolsPythonV2",
        "G: the layer 175033217214:layer:graphics-magick",
        "Globals: the layer 017000801446:layer:AWSLambdaPowertoolsPythonV2",
    ]
    assert "--layer AWSLambdaPowertoolsPythonV2=PATH" in notes[0]


def test_a_folder_that_the_user_gives_takes_the_place_of_a_layer_everywhere(folder: Path) -> None:
    packaged = _packaged(folder, {"AWSLambdaPowertoolsPythonV2": folder / "powertools"})
    resources, mine = packaged.document["Resources"], {"Ref": "ThawdLayerAWSLambdaPowertoolsPythonV2"}
    assert resources["F"]["Properties"]["Layers"] == [{"Ref": "Own"}, mine]
    assert packaged.document["Globals"]["Function"]["Layers"] == [mine]
    made = resources[mine["Ref"]]
    assert (made["Type"], made["Properties"]["LayerName"]) == (
        "AWS::Lambda::LayerVersion",
        "AWSLambdaPowertoolsPythonV2",
    )
    assert _content(packaged, made) == ["python/aws_lambda_powertools/__init__.py"]
    assert folder / "powertools" in packaged.sources
    assert [note[:2] for note in packaged.notes] == ["G:"]


def test_a_layer_is_chosen_by_the_longest_key_that_names_it(folder: Path) -> None:
    keys = ("AWSLambdaPowertoolsPythonV2", "017000801446:layer:AWSLambdaPowertoolsPythonV2:32")
    packaged = _packaged(folder, dict(zip(keys, (folder / "powertools", folder / "other"), strict=True)))
    made = packaged.document["Resources"]["ThawdLayerAWSLambdaPowertoolsPythonV2"]
    assert _content(packaged, made) == ["python/b.py"]
    other_version = _packaged(folder, {"017000801446:layer:AWSLambdaPowertoolsPythonV2:33": folder / "other"})
    assert "ThawdLayerAWSLambdaPowertoolsPythonV2" not in other_version.document["Resources"]


def test_a_key_may_be_an_arn() -> None:
    arn = "arn:aws-cn:lambda:eu-west-1:017000801446:layer:Powertools:3"
    assert layer_key(arn) == "017000801446:layer:Powertools:3"
    assert layer_key("Powertools") == "Powertools"


def test_a_folder_that_has_gone_is_named(folder: Path) -> None:
    with pytest.raises(ProjectError, match=r"there is no .*gone, which --layer graphics-magick names"):
        _packaged(folder, {"graphics-magick": folder / "gone"})
