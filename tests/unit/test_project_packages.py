"""Projects of one template: which file it is, samconfig.toml, and how local code is packaged."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.artifacts import ArtifactPlace, BuildTools, Packaged, package
from thawd.deploy.projects.discovery import find_project
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import ImageAsset, Project, ProjectError, ProjectOptions
from thawd.deploy.projects.template_files import stack_name, target_of
from thawd.deploy.projects.zip_files import Source, archive

pytestmark = pytest.mark.in_memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("src/app.py", "src/pkg/__pycache__/a.pyc", "src/.git/config", "flow.json", "ready.zip", "layer/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def _read(folder: Path, text: str, **options: Any) -> Project:
    (folder / "template.yaml").write_text(text)
    return read_project(folder / "template.yaml", ProjectOptions(**options))


def _packaged(folder: Path, text: str, packages: Any = None, **others: Any) -> Packaged:
    tools = BuildTools(packages, lambda image: f"{image.repository}:built", **others)
    return package(_read(folder, text).stacks[0], tools)


def _names(content: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def test_a_template_comes_before_other_projects(folder: Path) -> None:
    assert find_project(folder) is None
    for name in ("cdk.out/manifest.json", "serverless.yml", "template.json", "template.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        assert find_project(folder) == folder / name


def test_samconfig_names_the_stack_and_its_parameters(folder: Path) -> None:
    text = "Parameters: {A: {Type: String}, B: {Type: String}}\nResources: {T: {Type: AWS::SNS::Topic}}"
    (folder / "samconfig.toml").write_text(
        '[default.global.parameters]\nstack_name = "first"\n'
        "[default.deploy.parameters]\nparameter_overrides = \"A=1 B='2 3' C=4\"\n"
        '[prod.deploy.parameters]\nstack_name = "second"\nparameter_overrides = ["A=5"]\n'
        'tags = "team=a"\nregion = "eu-west-1"\nprofile = "work"\n'
    )
    stack = _read(folder, text, parameters={"B": "given"}).stacks[0]
    assert (stack.name, stack.parameters) == ("first", {"A": "1", "B": "given"})
    stack = _read(folder, text, env="prod").stacks[0]
    assert (stack.name, stack.parameters, stack.tags) == ("second", {"A": "5"}, {"team": "a"})
    assert target_of(folder / "template.yaml", "prod") == ("eu-west-1", "work")
    assert target_of(folder / "template.yaml", None) == (None, None)
    with pytest.raises(ProjectError, match="has no section test; it has default, prod"):
        _read(folder, text, env="test")
    assert stack_name("my_app 2") == "my-app-2"
    assert stack_name("7") == "app-7"


def test_nothing_is_installed_for_a_requirements_file_without_requirements(folder: Path) -> None:
    (folder / "src/requirements.txt").write_text("# boto3 is there\n\n")
    text = "Resources: {A: {Type: AWS::Lambda::Function, Properties: {Code: src, Runtime: python3.12}}}"
    packaged = _packaged(folder, text)  # without a tool that installs
    assert sorted(_names(*packaged.objects.values())) == ["app.py", "requirements.txt"]
    assert packaged.notes == []


def test_code_is_zipped_without_what_no_function_needs(folder: Path) -> None:
    packaged = _packaged(
        folder,
        """
        Transform: AWS::Serverless-2016-10-31
        Globals: {Function: {CodeUri: src, Runtime: python3.12}}
        Resources:
          A: {Type: AWS::Serverless::Function}
          B: {Type: AWS::Serverless::Function, Properties: {CodeUri: ready.zip}}
          C: {Type: AWS::Lambda::Function, Properties: {Code: src/app.py}}
          D: {Type: AWS::Serverless::Function, Properties: {InlineCode: x}}
          E: {Type: AWS::Serverless::Function, Properties: {CodeUri: s3://there/key}}
          L: {Type: AWS::Lambda::LayerVersion, Properties: {Content: layer}}
          S: {Type: AWS::Serverless::StateMachine, Properties: {DefinitionUri: flow.json}}
          'Fn::ForEach::X': [N, [a], {'F${N}': {Type: AWS::Serverless::Function, Properties: {CodeUri: src}}}]
        """,
    )
    resources = packaged.document["Resources"]
    keys = {name: str(next(iter(each["Properties"].values()))) for name, each in resources.items() if name in "ABES"}

    def content(address: str) -> bytes:
        return packaged.objects[address.removeprefix("s3://thawd-artifacts/")]

    assert _names(content(keys["A"])) == ["app.py"]
    assert content(keys["B"]) == b"ready.zip"
    assert content(keys["S"]) == b"flow.json"
    assert keys["E"] == "s3://there/key"
    assert resources["D"]["Properties"] == {"InlineCode": "x"}
    assert resources["Fn::ForEach::X"][2]["F${N}"]["Properties"]["CodeUri"] == keys["A"]
    assert _names(packaged.objects[resources["C"]["Properties"]["Code"]["S3Key"]]) == ["app.py"]
    assert _names(packaged.objects[resources["L"]["Properties"]["Content"]["S3Key"]]) == ["a.txt"]
    assert packaged.document["Globals"]["Function"] == {"Runtime": "python3.12"}
    assert {path.name for path in packaged.sources} == {"src", "app.py", "ready.zip", "flow.json", "layer"}


def test_requirements_beside_the_code_are_in_its_package(folder: Path) -> None:
    (folder / "src/requirements.txt").write_text("six")
    (folder / "layer/requirements.txt").write_text("six")
    site = folder / "site-packages"
    (site / "six").mkdir(parents=True)
    (site / "six/__init__.py").touch()
    asked: list[tuple[str, str, str | None]] = []

    def packages(requirements: Path, runtime: str, architecture: str | None) -> Path:
        asked.append((requirements.parent.name, runtime, architecture))
        return site

    packaged = _packaged(
        folder,
        """
        Transform: AWS::Serverless-2016-10-31
        Resources:
          A: {Type: AWS::Serverless::Function, Properties: {CodeUri: src, Runtime: !Ref Runtime}}
          L:
            Type: AWS::Serverless::LayerVersion
            Metadata: {BuildMethod: python3.11, BuildArchitecture: arm64}
            Properties: {ContentUri: layer}
          K:
            Type: AWS::Lambda::Function
            Metadata: {'aws:asset:path': src, 'aws:asset:is-bundled': false}
            Properties:
              Runtime: python3.13
              Architectures: [!If [IsArm, arm64, x86_64]]
              Code: {S3Bucket: cdk-assets, S3Key: abc.zip}
        Parameters: {Runtime: {Type: String, Default: python3.12}}
        """,
        packages,
    )
    assert asked == [
        ("src", "python3.12", "x86_64"),
        ("layer", "python3.11", "arm64"),
        ("src", "python3.13", None),
    ]
    zips = sorted(_names(content) for content in packaged.objects.values())
    assert zips == [
        ["app.py", "requirements.txt", "six/__init__.py"],
        ["python/a.txt", "python/requirements.txt", "python/six/__init__.py"],
    ]


def test_code_of_several_functions_is_zipped_once_and_handed_on_before_all_is_packaged(folder: Path) -> None:
    function = "{Type: AWS::Serverless::Function, Properties: {CodeUri: src}}"
    taken: list[bytes] = []
    packaged = _packaged(folder, f"Resources: {{A: {function}, B: {function}}}", take_zip=taken.append)
    assert len(packaged.archives) == 1
    assert taken == list(packaged.objects.values())
    with zipfile.ZipFile(io.BytesIO(taken[0])) as content:
        assert {each.compress_type for each in content.infolist()} == {zipfile.ZIP_STORED}  # made sooner, read sooner
    stack = _read(folder, f"Resources: {{A: {function}}}").stacks[0]
    sent = package(stack, BuildTools(lambda *_: folder, str), ArtifactPlace("bucket", compresses=True))
    with zipfile.ZipFile(io.BytesIO(*sent.objects.values())) as content:
        assert {each.compress_type for each in content.infolist()} == {zipfile.ZIP_DEFLATED}


def test_nested_templates_are_packaged_with_their_code(folder: Path) -> None:
    (folder / "nested").mkdir()
    (folder / "nested/child.yaml").write_text(
        "Resources: {F: {Type: AWS::Lambda::Function, Properties: {Code: ../src}}}"
    )
    packaged = _packaged(
        folder,
        "Resources: {N: {Type: AWS::CloudFormation::Stack, Properties: {TemplateURL: nested/child.yaml}}}",
    )
    url = packaged.document["Resources"]["N"]["Properties"]["TemplateURL"]
    assert url.startswith("https://s3.us-east-1.amazonaws.com/thawd-artifacts/")
    child = json.loads(packaged.objects[url.partition("/thawd-artifacts/")[2]])
    assert child["Resources"]["F"]["Properties"]["Code"]["S3Key"] in packaged.objects
    assert {path.name for path in packaged.sources} == {"child.yaml", "src"}


def test_code_that_is_not_there_or_is_built_by_a_tool_is_refused_with_the_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "Transform: AWS::Serverless-2016-10-31\nResources: {F: {Type: AWS::Serverless::Function, "
    with pytest.raises(ProjectError, match=r"F: there is no .*gone; the template says 'gone'"):
        _packaged(folder, head + "Properties: {CodeUri: gone}}}")
    built = head + "Metadata: {BuildMethod: esbuild}, Properties: {CodeUri: src}}}"
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ProjectError, match="F is built by esbuild, which is not on this machine: install it"):
        _packaged(folder, built)
    made = built.replace("esbuild", "makefile")
    with pytest.raises(ProjectError, match="F is built by makefile, which thawd does not run: run `sam build`"):
        _packaged(folder, made)
    (folder / ".aws-sam/build/F").mkdir(parents=True)
    (folder / ".aws-sam/build/F/app.js").touch()
    [content] = _packaged(folder, built).objects.values()
    assert _names(content) == ["app.js"]


def test_a_zip_file_is_the_same_bytes_whatever_the_times_and_order(folder: Path) -> None:
    first = archive([Source(folder / "src", "")])
    (folder / "src/app.py").chmod(0o640)
    os.utime(folder / "src/app.py", (1, 1))
    assert archive([Source(folder / "src", "")]) == first
    (folder / "src/loop").symlink_to(folder / "src")
    for target in ("missing", "app.py/below", "nothing"):
        (folder / "src/nothing").unlink(missing_ok=True)
        (folder / "src/nothing").symlink_to(target)
        assert archive([Source(folder / "src", "")]) == first
    (folder / "src/app.py").chmod(0o755)
    assert archive([Source(folder / "src", "")]) != first


def test_a_template_that_cannot_be_read_is_refused(folder: Path) -> None:
    with pytest.raises(ProjectError, match=r"template.yaml: Template format error: .*line 2"):
        _read(folder, "A: [")


_IN_IMAGE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Captions:
    Type: AWS::Serverless::Function
    Metadata:
      {Dockerfile: Dockerfile.captions, DockerContext: src, DockerBuildTarget: last, DockerBuildArgs: {VERSION: 3}}
    Properties: {PackageType: Image}
  Plain:
    Type: AWS::Lambda::Function
    Metadata: {Dockerfile: Dockerfile.captions, DockerContext: src}
    Properties: {PackageType: Image, Role: r, Code: {}}
  Foreign:
    Type: AWS::Serverless::Function
    Properties: {PackageType: Image, ImageUri: registry.example/captions:1}
"""


def test_images_are_built_as_the_metadata_of_functions_say(folder: Path) -> None:
    # Source: SAM developer guide, "Building Lambda functions with container images".
    (folder / "src" / "Dockerfile.captions").touch()
    stack = _read(folder, _IN_IMAGE).stacks[0]
    built = []

    def build(image: ImageAsset) -> str:
        built.append(image)
        return f"{image.repository}:built"

    packaged = package(stack, BuildTools(lambda requirements, runtime, architecture: requirements, build))
    first, second = built
    assert (first.folder, first.dockerfile.name) == ((folder / "src").resolve(), "Dockerfile.captions")
    assert (first.target, first.build_args, second.target) == ("last", {"VERSION": "3"}, None)
    resources = packaged.document["Resources"]
    repository = f"000000000000.dkr.ecr.us-east-1.amazonaws.com/{stack.name.lower()}"
    assert resources["Captions"]["Properties"]["ImageUri"] == f"{repository}/captions:built"
    assert resources["Plain"]["Properties"]["Code"] == {"ImageUri": f"{repository}/plain:built"}
    assert resources["Foreign"]["Properties"]["ImageUri"] == "registry.example/captions:1"
    assert packaged.images == {f"{repository}/captions:built", f"{repository}/plain:built"}
    assert (folder / "src").resolve() in packaged.sources


def test_a_dockerfile_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ProjectError, match=r"there is no .*Dockerfile\.captions"):
        _packaged(folder, _IN_IMAGE)
