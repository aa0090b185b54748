"""Archives of code, and the layer with the package ``thawd`` for handlers on AWS."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.unit.aws_orders import CLASSIFY
from tests.unit.oci_layers import add_image, entry, layer
from thawd import config
from thawd.deploy.aws import assets, function_images
from thawd.deploy.aws.assets import Assets, make_assets
from thawd.deploy.aws.stack import DeploymentError
from thawd.deploy.images.function_image import FunctionImageRequest
from thawd.deploy.packages.targets import Limits
from thawd.oci.image_store import Images

CONFIG = '[functions.f]\nhandler = "app.handler"\n[buckets.uploads]\n[tables.labels]\n'


def made(project: Path, out: Path) -> Assets:
    out.mkdir(exist_ok=True)
    settings = config.load(project / "thawd.toml", environ={})
    return make_assets(settings, stack="shop", folder=out, tries_imports=False, report=lambda line: None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pack").mkdir(parents=True)
    (folder / "thawd.toml").write_text(CONFIG)
    (folder / "app.py").write_text(CLASSIFY)
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def test_archives_made_twice_are_the_same_bytes_and_follow_changes(project: Path, tmp_path: Path) -> None:
    first = made(project, tmp_path / "one")
    os.utime(project / "app.py", (1, 1))
    second = made(project, tmp_path / "two")
    assert [asset.key for asset in first.archives] == [asset.key for asset in second.archives]
    assert [one.file.read_bytes() for one in first.archives] == [two.file.read_bytes() for two in second.archives]
    (project / "app.py").write_text("def handler(event, context): return 2\n")
    assert made(project, tmp_path / "three").code["f"].key != first.code["f"].key


def test_an_archive_has_the_code_and_neither_the_configuration_nor_data(project: Path, tmp_path: Path) -> None:
    (project / "uploads").mkdir()
    (project / "uploads" / "private.png").write_text("")
    found = made(project, tmp_path / "out")
    [file] = [asset.file for asset in found.archives if asset.key == found.code["f"].key]
    with zipfile.ZipFile(file) as archive:
        assert [name for name in archive.namelist() if not name.endswith("/")] == [
            "app.py",
            "pack/__init__.py",
            "run.sh",
        ]


def test_functions_with_the_same_code_share_an_archive(project: Path, tmp_path: Path) -> None:
    (project / "thawd.toml").write_text(CONFIG + '[functions.g]\nhandler = "app.handler"\n')
    found = made(project, tmp_path / "out")
    assert found.code["f"].key == found.code["g"].key
    assert len(found.archives) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('image = "captions:1"', "functions.f.image: there is no image captions:1"),
        ('image = "other:1"', "functions.f.image: other:1 is for arm64, and the functions run on x86_64"),
        ('requirements = "none.txt"', "none.txt"),
    ],
)
def test_what_cannot_be_packaged_is_refused(project: Path, tmp_path: Path, line: str, said: str) -> None:
    (project / "none.txt").write_text("no-such-package-of-anybody==1\n--no-index\n")
    add_image(Images(project / ".thawd" / "images"), layer(entry("f")), name="other:1", architecture="arm64")
    handler = "" if line.startswith("image") else 'handler = "app.handler"\n'
    (project / "thawd.toml").write_text(f"[functions.f]\n{handler}{line}\n")
    with pytest.raises(DeploymentError, match=said):
        made(project, tmp_path / "out")


def test_an_image_is_named_by_its_digest_and_needs_no_archive(project: Path, tmp_path: Path) -> None:
    added = add_image(Images(project / ".thawd" / "images"), layer(entry("f")), name="captions:1")
    (project / "thawd.toml").write_text('[functions.f]\nimage = "captions:1"\n')
    found = made(project, tmp_path / "out")
    assert (found.code["f"].image, found.images, found.archives) == (added, (added,), ())
    assert (found.image_store / "blobs").is_dir()


def test_a_function_that_fits_into_no_zip_file_becomes_an_image_unless_its_stores_would_be_missing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[FunctionImageRequest] = []

    def build(images: Images, request: FunctionImageRequest, report: object) -> str:
        wanted.append(request)
        return add_image(images, layer(entry("f")))

    monkeypatch.setattr(function_images, "build_function", build)
    monkeypatch.setattr(assets, "Limits", lambda: Limits(unpacked_bytes=66_000))
    (project / "app.py").write_text(f"DATA = '{'x' * 1000}'\ndef handler(event, context): return 2\n")
    (project / "thawd.toml").write_text(CONFIG + '[deploy.aws]\npython = "3.13"\n')
    found = made(project, tmp_path / "out")
    assert found.images == (found.code["f"].image,)
    assert (wanted[0].function.python, wanted[0].function.handler) == ("3.13", "app.handler")
    (project / "app.py").write_text(f"DATA = '{'x' * 1000}'\n{CLASSIFY}")
    with pytest.raises(DeploymentError, match=r"where thawd.bucket and thawd.table are missing on AWS: zip: "):
        made(project, tmp_path / "out2")


def test_files_for_another_machine_are_named(project: Path, tmp_path: Path) -> None:
    library = next(Path(str(sysconfig.get_config_var("DESTSHARED"))).glob("*.so"))
    shutil.copy(library, project / "own.so")
    other = {"x86_64": "arm64", "aarch64": "x86_64"}[platform.machine()]
    (project / "thawd.toml").write_text(CONFIG + f'[deploy.aws]\narchitecture = "{other}"\n')
    said: list[str] = []
    (tmp_path / "out").mkdir()
    settings = config.load(project / "thawd.toml", environ={})
    make_assets(settings, stack="shop", folder=tmp_path / "out", tries_imports=False, report=said.append)
    assert any(f"functions.f: the code contains files that do not run on {other}: own.so" in line for line in said)


def test_only_functions_that_use_stores_get_the_layer(project: Path, tmp_path: Path) -> None:
    assert made(project, tmp_path / "out").layer_key is not None
    (project / "app.py").write_text("def handler(event, context): return 2\n")
    assert made(project, tmp_path / "out").layer_key is None


def test_the_layer_is_a_package_that_needs_nothing_of_thawd(project: Path, tmp_path: Path) -> None:
    layer = made(project, tmp_path / "out").layer_key
    assert layer is not None
    with zipfile.ZipFile(tmp_path / "out" / "thawd.zip") as archive:
        archive.extractall(tmp_path / "opt")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'opt' / 'python')!r}); import thawd, json; "
        "print(json.dumps([thawd.__file__, thawd.table('labels').name, thawd.bucket('uploads').name]))"
    )
    places = {"STACK_THAWD_TABLES": '{"labels":["t","key",""]}', "STACK_THAWD_BUCKETS": '{"uploads":["b",""]}'}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, env=places, check=True
    )
    assert json.loads(done.stdout) == [str(tmp_path / "opt/python/thawd/__init__.py"), "labels", "uploads"]
