"""Archives of code, and the layer with the package ``thawd`` for handlers on AWS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.aws_orders import CLASSIFY
from thawd import config
from thawd.deploy.aws import assets
from thawd.deploy.aws.assets import Assets, make_assets
from thawd.deploy.aws.stack import DeploymentError

CONFIG = '[functions.f]\nhandler = "app.handler"\n[buckets.uploads]\n[tables.labels]\n'


def made(project: Path, out: Path) -> Assets:
    out.mkdir(exist_ok=True)
    return make_assets(config.load(project / "thawd.toml", environ={}), stack="shop", folder=out)


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
    assert [asset.file.read_bytes() for asset in first.archives] == [
        asset.file.read_bytes() for asset in second.archives
    ]
    (project / "app.py").write_text("def handler(event, context): return 2\n")
    assert made(project, tmp_path / "three").code["f"].key != first.code["f"].key


def test_an_archive_has_the_code_and_neither_the_configuration_nor_data(project: Path, tmp_path: Path) -> None:
    for folder in ("__pycache__", ".git", "uploads", ".thawd", "env"):
        (project / folder).mkdir()
        (project / folder / "file.pyc.txt").write_text("")
    (project / "env" / "pyvenv.cfg").write_text("")
    found = made(project, tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "out" / found.code["f"].key.rpartition("/")[2]) as archive:
        assert archive.namelist() == ["app.py", "pack/__init__.py", "run.sh"]
        assert archive.getinfo("run.sh").external_attr >> 16 == 0o100755


def test_links_out_of_the_code_and_too_much_code_are_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "secret").symlink_to("/etc/hostname")
    with pytest.raises(DeploymentError, match="leads out of the code folder"):
        made(project, tmp_path / "out")
    (project / "secret").unlink()
    monkeypatch.setattr(assets, "MAX_UNZIPPED_BYTES", 10)
    with pytest.raises(DeploymentError, match=r"functions\.f\.code: code and packages have [\d,]+ bytes"):
        made(project, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_only_functions_that_use_stores_get_the_layer(project: Path, tmp_path: Path) -> None:
    assert made(project, tmp_path / "out").layer_key is not None
    (project / "app.py").write_text("def handler(event, context): return 2\n")
    assert made(project, tmp_path / "out").layer_key is None


def test_the_layer_is_a_package_that_needs_nothing_of_thawd(project: Path, tmp_path: Path) -> None:
    layer = made(project, tmp_path / "out").layer_key
    assert layer is not None
    with zipfile.ZipFile(tmp_path / "out" / layer.rpartition("/")[2]) as archive:
        archive.extractall(tmp_path / "opt")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'opt' / 'python')!r}); import thawd, json; "
        "print(json.dumps([thawd.__file__, thawd.table('labels').name, thawd.bucket('uploads').name]))"
    )
    places = {"STACK_THAWD_TABLES": '{"labels":["t","key"]}', "STACK_THAWD_BUCKETS": '{"uploads":["b",""]}'}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, env=places, check=True
    )
    assert json.loads(done.stdout) == [str(tmp_path / "opt/python/thawd/__init__.py"), "labels", "uploads"]
