"""Cloud assemblies of CDK: their stacks in order, with assets, stages and parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.discovery import find_project, is_project
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import Project, ProjectError, ProjectOptions

pytestmark = pytest.mark.in_memory

_VERSION = {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/cdk-bootstrap/hnb659fds/version"}


_IMAGE = {
    "source": {"directory": "asset.image", "dockerFile": "Dockerfile.web", "dockerBuildArgs": {"VERSION": "3"}},
    "destinations": {
        "here": {
            "repositoryName": "cdk-hnb659fds-container-assets-${AWS::AccountId}-${AWS::Region}",
            "imageTag": "0123456789abcdef",
        }
    },
}


def _stack(folder: Path, name: str, *needs: str, **template: Any) -> dict[str, Any]:
    """The artifacts of a stack with one asset and one image, and their files."""
    document = {"Resources": {"T": {"Type": "AWS::SNS::Topic"}}, "Parameters": {"BootstrapVersion": _VERSION}}
    (folder / f"{name}.template.json").write_text(json.dumps(document | template))
    bucket = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}"
    place = {"here": {"bucketName": bucket, "objectKey": "abc.zip"}}
    assets = {
        "files": {"abc": {"source": {"path": f"asset.{name}", "packaging": "zip"}, "destinations": place}},
        "dockerImages": {"0123456789abcdef": _IMAGE} if name == "Web" else {},
    }
    (folder / f"{name}.assets.json").write_text(json.dumps(assets))
    properties = {"templateFile": f"{name}.template.json", "stackName": f"{name}-stack", "tags": {"team": "a"}}
    return {
        name: {
            "type": "aws:cloudformation:stack",
            "properties": properties,
            "displayName": f"App/{name}",
            "dependencies": [*needs, f"{name}.assets"],
        },
        f"{name}.assets": {"type": "cdk:asset-manifest", "properties": {"file": f"{name}.assets.json"}},
    }


@pytest.fixture
def assembly(tmp_path: Path) -> Path:
    folder, stage = tmp_path / "cdk.out", tmp_path / "cdk.out" / "assembly-Prod"
    stage.mkdir(parents=True)
    colour = {"Parameters": {"Colour": {"Type": "String"}}}
    artifacts = {
        **_stack(folder, "Web", "Data"),
        **_stack(folder, "Data", **colour),
        "assembly-Prod": {"type": "cdk:cloud-assembly", "properties": {"directoryName": "assembly-Prod"}},
        "Tree": {"type": "cdk:tree", "properties": {"file": "tree.json"}},
    }
    (folder / "manifest.json").write_text(json.dumps({"version": "38.0.0", "artifacts": artifacts}))
    (stage / "manifest.json").write_text(json.dumps({"version": "38.0.0", "artifacts": _stack(stage, "Late")}))
    return folder


def _read(path: Path, **options: Any) -> Project:
    return read_project(path, ProjectOptions(**options))


def test_stacks_come_after_those_that_they_need_with_their_assets(assembly: Path) -> None:
    found = find_project(assembly.parent)
    assert found == assembly / "manifest.json"
    assert is_project(assembly)
    project = _read(found)
    names = [stack.name for stack in project.stacks]
    assert sorted(names) == ["Data-stack", "Late-stack", "Web-stack"]
    assert names.index("Data-stack") < names.index("Web-stack")
    web = next(stack for stack in project.stacks if stack.name == "Web-stack")
    [asset] = web.assets
    assert (asset.path.name, asset.is_zipped, asset.key) == ("asset.Web", True, "abc.zip")
    assert asset.bucket == "cdk-hnb659fds-assets-000000000000-us-east-1"
    assert web.tags == {"team": "a"}
    late = next(stack for stack in project.stacks if stack.name == "Late-stack")
    assert late.folder == (assembly / "assembly-Prod").resolve()
    assert list(project.bootstrap) == ["/cdk-bootstrap/hnb659fds/version"]
    assert project.notes == ()
    [image] = web.images
    assert image.dockerfile == (assembly / "asset.image" / "Dockerfile.web").resolve()
    assert (image.tag, image.build_args, image.target) == ("0123456789abcdef", {"VERSION": "3"}, None)
    assert image.repository == (
        "000000000000.dkr.ecr.us-east-1.amazonaws.com/cdk-hnb659fds-container-assets-000000000000-us-east-1"
    )


@pytest.mark.parametrize(
    ("name", "stacks"),
    [("Web", ["Data-stack", "Web-stack"]), ("App/Data", ["Data-stack"]), ("Late-stack", ["Late-stack"])],
)
def test_one_stack_is_made_with_those_that_it_needs(assembly: Path, name: str, stacks: list[str]) -> None:
    assert [stack.name for stack in _read(assembly, stack=name).stacks] == stacks


def test_parameters_go_to_the_stacks_that_have_them(assembly: Path) -> None:
    for name in ("Colour", "Data-stack:Colour"):
        stacks = {stack.name: stack.parameters for stack in _read(assembly, parameters={name: "red"}).stacks}
        assert stacks == {"Data-stack": {"Colour": "red"}, "Web-stack": {}, "Late-stack": {}}


def test_what_is_not_there_is_refused(assembly: Path) -> None:
    with pytest.raises(ProjectError, match="there is no Other; there are Web-stack, Data-stack, Late-stack"):
        _read(assembly, stack="Other")
    with pytest.raises(ProjectError, match="no stack has a parameter Size"):
        _read(assembly, parameters={"Size": "1"})
    (assembly / "Web.assets.json").unlink()
    with pytest.raises(ProjectError, match="run `cdk synth`"):
        _read(assembly)
    (assembly / "manifest.json").write_text('{"artifacts": {}}')
    with pytest.raises(ProjectError, match="has no stack"):
        _read(assembly)
