"""Functions for Node in projects: their packages are installed by npm."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.artifacts import BuildTools, package
from thawd.deploy.projects.checking import check_project
from thawd.deploy.projects.npm_packages import NpmPackages
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import ProjectError, ProjectOptions
from thawd.errors import EnvironmentBuildError

FUNCTION = """
Transform: AWS::Serverless-2016-10-31
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: src, Handler: app.handler, Runtime: nodejs22.x}
"""
LAYER = """
Transform: AWS::Serverless-2016-10-31
Resources:
  L: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: src}, Metadata: {BuildMethod: nodejs22.x}}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A code folder with a package of its own, which package.json requires."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "app.js").write_text("exports.handler = async () => require('greeting')")
    with tarfile.open(folder / "greeting-1.0.0.tgz", "w:gz") as archive:
        files = {"package.json": '{"name": "greeting", "version": "1.0.0"}', "index.js": "module.exports = 'hello'"}
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    manifest(folder, greeting="file:greeting-1.0.0.tgz")
    return folder


def manifest(folder: Path, **dependencies: str) -> None:
    document = {"name": "app", "version": "1.0.0", "dependencies": dependencies}
    (folder / "package.json").write_text(json.dumps(document))


def builds(folder: Path, **variables: str) -> NpmPackages:
    return NpmPackages(folder / "installed", {**os.environ, "npm_config_offline": "true", **variables})


def packaged(folder: Path, npm: NpmPackages, template: str = FUNCTION) -> dict[str, str]:
    """The files of the package, and notes under the name ``notes``."""
    (folder / "template.yaml").write_text(template)
    project = read_project(folder / "template.yaml", ProjectOptions())
    made = package(project.stacks[0], BuildTools(_no_packages, str, npm=npm))
    [content] = made.objects.values()
    opened = zipfile.ZipFile(io.BytesIO(content))
    return {name: opened.read(name).decode(errors="replace") for name in opened.namelist()} | {"notes": str(made.notes)}


def _no_packages(*_: Any) -> Path:
    raise AssertionError("there are no requirements")


def program(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(place.stat().st_mode | stat.S_IXUSR)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_what_package_json_requires_is_installed_once_and_is_in_the_package(source: Path, tmp_path: Path) -> None:
    npm = builds(tmp_path)
    first = packaged(tmp_path, npm)
    assert first["node_modules/greeting/index.js"] == "module.exports = 'hello'"
    assert first["app.js"].startswith("exports.handler")
    assert (first["notes"], (source / "node_modules").exists()) == ("[]", False)
    (source / "app.js").write_text("changed")
    again = packaged(tmp_path, builds(tmp_path, npm_config_registry="http://127.0.0.1:1"))
    assert (again["app.js"], len(list((tmp_path / "installed").iterdir()))) == ("changed", 1)
    assert "nodejs/node_modules/greeting/index.js" in packaged(tmp_path, npm, LAYER)
    manifest(source)
    assert "node_modules/greeting/index.js" not in packaged(tmp_path, npm)


def test_installed_packages_of_the_user_are_taken_as_they_are(source: Path, tmp_path: Path) -> None:
    (source / "node_modules" / "own").mkdir(parents=True)
    (source / "node_modules" / "own" / "index.js").touch()
    assert "node_modules/own/index.js" in packaged(tmp_path, builds(tmp_path, PATH="/nowhere"))


def test_an_npm_that_fails_leaves_nothing_behind_and_its_words_are_shown(source: Path, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "npm", "echo 'no such version' >&2; exit 3")
    npm = builds(tmp_path, PATH=f"{tmp_path / 'bin'}:/bin:/usr/bin")
    with pytest.raises(EnvironmentBuildError, match="npm failed with status 3: no such version"):
        packaged(tmp_path, npm)
    assert list((tmp_path / "installed").iterdir()) == []


def test_without_npm_the_packages_are_named_as_missing(source: Path, tmp_path: Path) -> None:
    found = packaged(tmp_path, builds(tmp_path, PATH="/nowhere"))
    assert "there is no npm; if it has dependencies" in found["notes"]
    assert "app.js" in found


@pytest.mark.parametrize("where", ["file:../outside", "link:./x", "workspace:*", "file:sub"])
def test_a_dependency_outside_of_the_folder_is_refused(source: Path, tmp_path: Path, where: str) -> None:
    (source / "sub").mkdir()
    manifest(source, other=where)
    with pytest.raises(ProjectError, match="run `npm install` in this folder yourself"):
        packaged(tmp_path, builds(tmp_path))


def test_a_check_installs_nothing(source: Path, tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(FUNCTION)
    project = read_project(tmp_path / "template.yaml", ProjectOptions())
    findings = check_project(project, lambda kind: None, {})
    assert (findings.mistakes, findings.counts["AWS::Lambda::Function"]) == ([], 1)
    assert sorted(path.name for path in source.iterdir()) == ["app.js", "greeting-1.0.0.tgz", "package.json"]
