"""Functions that ``sam build`` bundles with esbuild: with which flags it runs, and what it makes."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from thawd.deploy.projects.artifacts import BuildTools, Packaged, package
from thawd.deploy.projects.esbuild import find_esbuild
from thawd.deploy.projects.reading import read_project
from thawd.deploy.projects.stacks import ProjectError, ProjectOptions

# Stands for esbuild: writes a module with the arguments, and the report of what went in.
_ESBUILD = f"""#!{sys.executable}
import json, os, sys
flags = dict(each.partition("=")[::2] for each in sys.argv[1:])
if os.path.exists("broken"):
    sys.exit('Could not resolve "uuid"')
os.makedirs(flags["--outdir"])
with open(flags["--outdir"] + "/app.js", "w") as made:
    made.write("\\n".join(sys.argv[1:]))
with open(flags["--metafile"], "w") as report:
    json.dump({{"inputs": {{"app.ts": {{}}, "../shared/names.ts": {{}}, "node_modules/x/index.js": {{}}}}}}, report)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("src/app.ts", "shared/names.ts", "src/node_modules/x/index.js", "src/node_modules/.bin/esbuild")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / names[-1]).write_text(_ESBUILD)
    (tmp_path / names[-1]).chmod(0o755)
    return tmp_path


def _packaged(folder: Path, properties: str) -> Packaged:
    (folder / "template.yaml").write_text(
        "Transform: AWS::Serverless-2016-10-31\nResources:\n  F:\n    Type: AWS::Serverless::Function\n"
        f"    Metadata: {{BuildMethod: esbuild, BuildProperties: {properties}}}\n"
        "    Properties: {CodeUri: src, Runtime: nodejs22.x, Handler: app.handler}\n"
    )
    [stack] = read_project(folder / "template.yaml", ProjectOptions()).stacks
    return package(stack, BuildTools(lambda requirements, runtime, architecture: requirements, lambda image: ""))


def _flags(packaged: Packaged) -> list[str]:
    [content] = packaged.objects.values()
    made = zipfile.ZipFile(io.BytesIO(content))
    assert made.namelist() == ["app.js"]
    return made.read("app.js").decode().splitlines()


def test_properties_become_flags_of_esbuild_with_the_defaults_of_sam(folder: Path) -> None:
    # Source: SAM developer guide, "Building Node.js Lambda functions with esbuild in AWS SAM".
    plain = _flags(_packaged(folder, "{EntryPoints: [app.ts]}"))
    assert {"app.ts", "--minify", "--target=es2020", "--format=cjs", "--bundle", "--platform=node"} <= set(plain)
    chosen = _flags(
        _packaged(
            folder,
            "{EntryPoints: [app.ts], Minify: false, Sourcemap: true, Format: esm, Target: node22, "
            "External: [aws-sdk, pg], OutExtension: [.js=.mjs], MainFields: 'module,main', "
            "Loader: [.png=file], SourcesContent: false}",
        )
    )
    wanted = {
        "--sourcemap", "--format=esm", "--target=node22",
        "--external:aws-sdk", "--external:pg", "--out-extension:.js=.mjs",
        "--main-fields=module,main", "--loader:.png=file", "--sources-content=false",
    }  # fmt: skip
    assert wanted <= set(chosen)
    assert "--minify" not in chosen


def test_files_outside_the_code_folder_that_go_into_a_bundle_are_watched(folder: Path) -> None:
    packaged = _packaged(folder, "{EntryPoints: [app.ts]}")
    assert packaged.sources == {folder / "src", folder / "src/app.ts", folder / "shared/names.ts"}


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ("x", "F: BuildMethod esbuild needs BuildProperties with EntryPoints"),
        ("{Minify: true}", "F: EntryPoints of BuildProperties names no file"),
        ("{EntryPoints: [app.ts], Splitting: true}", "F: Splitting of BuildProperties is none of those"),
        ("{EntryPoints: [app.ts], External: [{a: b}]}", "F: External of BuildProperties is"),
    ],
)
def test_wrong_properties_are_refused_by_name(folder: Path, properties: str, complaint: str) -> None:
    with pytest.raises(ProjectError, match=complaint):
        _packaged(folder, properties)


def test_what_esbuild_prints_is_in_the_refusal(folder: Path) -> None:
    (folder / "src/broken").touch()
    with pytest.raises(ProjectError, match='F: esbuild failed: Could not resolve "uuid"'):
        _packaged(folder, "{EntryPoints: [app.ts]}")


def test_esbuild_is_looked_for_in_node_modules_of_all_folders_above_and_then_on_path(folder: Path) -> None:
    deep = folder / "src/a/b"
    deep.mkdir(parents=True)
    own = str(folder / "src/node_modules/.bin/esbuild")
    environ: dict[str, Any] = {"PATH": str(Path(own).parent)}
    assert find_esbuild(deep, environ) == own
    assert find_esbuild(folder / "shared", {"PATH": str(folder)}) is None
    assert find_esbuild(folder / "shared", environ) == own
