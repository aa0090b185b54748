"""What the environments of a container image execute: thawd's runtime in the image's Python, or the entry point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thawd.environments.entry_points import EntryPoint, entry_point_of
from thawd.errors import EnvironmentBuildError
from thawd.oci.root import Root
from thawd.resources import Function, ImageConfig

LAMBDA = ["/lambda-entrypoint.sh"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of an image on Lambda's base image, as far as they matter here."""
    for name in ("lambda-entrypoint.sh", "var/lang/bin/python3.12", "usr/bin/python3", "usr/bin/program"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    (tmp_path / "var/task").mkdir()
    (tmp_path / "opt").mkdir()
    return tmp_path


def found(root: Path, entrypoint: list[str], cmd: list[str], **declared: Any) -> EntryPoint:
    env = {"PATH": "/var/lang/bin:/usr/bin", "OF": "image", **declared.pop("env", {})}
    image = Root(root, "sha256:" + "0" * 64, env, entrypoint, cmd, declared.pop("folder", "/var/task"), "", "amd64")
    function = Function(name="f", handler="", code=root, image="app:1", **declared)
    return entry_point_of(function, image)


def test_lambdas_base_image_runs_in_its_python(root: Path) -> None:
    entry = found(root, LAMBDA, ["app.handler"], environment={"OF": "function"})

    assert (entry.python, entry.handler) == ("/var/lang/bin/python3.12", "app.handler")
    assert (entry.working_folder, entry.task_root) == ("/var/task", "/var/task")
    assert entry.variables["OF"] == "function", "the function's variables are over the image's"


def test_a_python_with_awslambdaric_has_its_code_in_the_working_folder(root: Path) -> None:
    (root / "function").mkdir()

    entry = found(root, ["python3", "-m", "awslambdaric"], ["app.handler"], folder="/function")

    assert (entry.python, entry.handler, entry.task_root) == ("/usr/bin/python3", "app.handler", "/function")


def test_the_functions_image_config_replaces_each_part(root: Path) -> None:
    config = ImageConfig(entry_point=("/usr/bin/program", "-v"), command=("x",), working_directory="/opt")

    entry = found(root, LAMBDA, ["app.handler"], image_config=config)

    assert (entry.argv, entry.working_folder, entry.python) == (("/usr/bin/program", "-v", "x"), "/opt", None)
    assert found(root, LAMBDA, ["a.b"], image_config=ImageConfig(command=("c.d",))).handler == "c.d"


@pytest.mark.parametrize(
    ("entrypoint", "declared", "why"),
    [
        (["program"], {}, "entry point is program, and not a Python with awslambdaric"),
        (["python3", "-u", "-m", "awslambdaric"], {}, "and not a Python with awslambdaric"),
        (LAMBDA, {"environment": {"AWS_LAMBDA_EXEC_WRAPPER": "/opt/w"}}, "names a wrapper script of the image"),
        (LAMBDA, {"env": {"AWS_LAMBDA_EXEC_WRAPPER": "/opt/w"}}, "names a wrapper script of the image"),
    ],
)
def test_what_thawds_runtime_would_change_is_executed_as_it_is(
    root: Path, entrypoint: list[str], declared: dict[str, Any], why: str
) -> None:
    entry = found(root, entrypoint, ["app.handler"], **declared)

    assert entry.python is None
    assert entry.argv[-1] == "app.handler"
    assert why in entry.why_program


def test_an_image_with_extensions_is_executed_as_it_is(root: Path) -> None:
    extension = root / "opt/extensions/telemetry"
    extension.parent.mkdir()
    extension.write_text("#!/bin/sh\n")
    extension.chmod(0o755)

    assert "the image has extensions" in found(root, LAMBDA, ["app.handler"]).why_program


def test_a_base_image_without_lambdas_python_is_executed_as_it_is(root: Path) -> None:
    (root / "var/lang/bin/python3.12").rename(root / "var/lang/bin/node")

    assert "not Lambda's Python" in found(root, LAMBDA, ["app.handler"]).why_program


@pytest.mark.parametrize(
    ("entrypoint", "cmd", "folder", "why"),
    [
        ([], [], "/var/task", "has neither ENTRYPOINT nor CMD"),
        (LAMBDA, [], "/var/task", "needs the handler's name as CMD"),
        (["absent"], [], "/var/task", "is to execute absent, which is not in it"),
        (["/usr/bin/absent"], [], "/var/task", "is to execute /usr/bin/absent, which is not in it"),
        (LAMBDA, ["a.b"], "/absent", "has no folder /absent"),
    ],
)
def test_an_image_that_cannot_run_is_refused_with_the_reason(
    root: Path, entrypoint: list[str], cmd: list[str], folder: str, why: str
) -> None:
    with pytest.raises(EnvironmentBuildError) as caught:
        found(root, entrypoint, cmd, folder=folder)

    assert why in caught.value.message


def test_links_are_followed_within_the_image(root: Path) -> None:
    (root / "bin").symlink_to("/usr/bin")

    assert found(root, ["/bin/program"], []).argv == ("/bin/program",)


def test_a_link_that_leads_out_of_the_image_is_no_way_out(root: Path) -> None:
    (root / "usr/out").symlink_to("/etc")

    with pytest.raises(EnvironmentBuildError):
        found(root, ["/usr/out/passwd"], [])
