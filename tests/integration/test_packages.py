"""`thawd package` with made-up wheels: the archives run as on Lambda, are repeatable, and are never half made."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.integration.conftest import Project, eventually
from tests.integration.lambda_environment import LambdaService, bare_python
from tests.unit.made_up_wheels import make_wheel
from thawd.cli.program import main
from thawd.config import load
from thawd.deploy.packages.making import DOCUMENT, Order, Packages, make
from thawd.deploy.packages.page import page
from thawd.deploy.packages.targets import PackageError
from thawd.deploy.packages.trial import unpack
from thawd.deploy.packages.writing import part_key

HERE = "arm64" if platform.machine() == "aarch64" else "x86_64"
ELSEWHERE = "x86_64" if HERE == "arm64" else "arm64"
CODE = """
    import os, large, small

    def handler(event, context):
        return {"n": large.twice(event["n"]), "large": large.__file__, "text": open("data.txt").read()}
"""
FUNCTION = '[functions.f]\nhandler = "app.handler"\ncode = "code"\nrequirements = "requirements.txt"\n'


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with wheels, from which alone is installed."""
    folder = tmp_path / "wheels"
    body = "".join(f"def unused_{n}(): return {n}\n" for n in range(2000))
    make_wheel(
        folder,
        "large",
        {"large/__init__.py": "def twice(n): return 2 * n\n" + body, "large/tests/test_it.py": "", "large/a.pyi": ""},
        requires=["small"],
        scripts=["large = large:twice"],
    )
    make_wheel(folder, "small", {"small.py": "A = 1\n"})
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def app(project: Project) -> Project:
    """A function `f` that needs both wheels and a file beside its code."""
    project.code(CODE, "code/app.py")
    (project.root / "code" / "data.txt").write_text("data")
    (project.root / "requirements.txt").write_text("large\n")
    project.config(FUNCTION)
    return project


def made(
    project: Project, *names: str, output: str | None = "out", lines: list[str] | None = None, **order: Any
) -> Packages:
    folder = None if output is None else project.root / output
    order = {"architecture": HERE, "output": folder, **order}
    settings = load(project.root / "thawd.toml")
    return make(settings, names or tuple(settings.functions), Order(**order), ([] if lines is None else lines).append)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def has_ended(number: int) -> bool:
    """Whether a process has ended, even if its new parent has not noticed yet."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def unpacked(project: Project, name: str, files: Sequence[str]) -> Path:
    folder = project.root / name
    folder.mkdir()
    for file in files:
        unpack(project.root / "out" / file, folder)
    return folder


def test_the_zip_file_runs_with_awslambdaric_and_nothing_else(app: Project) -> None:
    packages = made(app)
    assert packages.trials["f"].state == "works"
    task = unpacked(app, "task", ["f.zip"])
    assert sorted(path.name for path in task.iterdir()) == [
        *("app.py", "data.txt", "large", "large-1.0.dist-info", "small-1.0.dist-info", "small.py"),
    ]
    with LambdaService(app.root / "out") as service:
        answer = service.answer({"n": 4}, bare_python(), "app.handler", task=task, tmp=app.root / "tmp")
    assert answer == {"n": 8, "large": str(task / "large/__init__.py"), "text": "data"}


def test_layers_run_with_awslambdaric_and_two_functions_share_them(app: Project) -> None:
    app.config(FUNCTION + FUNCTION.replace("functions.f", "functions.g"))
    packages = made(app, form="layers")
    [layer] = packages.plan.layers
    assert layer.functions == ("f", "g")
    task, opt = unpacked(app, "task", ["f.zip"]), unpacked(app, "opt", [packages.files[layer.name].file])
    assert packages.files[layer.name].size_bytes == layer.packed_bytes
    with LambdaService(app.root / "out") as service:
        answer = service.answer(
            {"n": 4}, bare_python(), "app.handler", task=task, tmp=app.root / "tmp", PYTHONPATH=str(opt / "python")
        )
    assert answer["large"] == str(opt / "python/large/__init__.py")


def test_a_split_package_fetches_its_part_once_for_two_environments_with_one_tmp(app: Project) -> None:
    packages = made(app, form="split")
    assert packages.plan.functions[0].part == ("large",)
    task, tmp, python = unpacked(app, "task", ["f.zip"]), app.root / "tmp", bare_python()
    assert not (task / "large").exists() and (task / "small.py").exists()
    both = threading.Barrier(2)
    with LambdaService(app.root / "out") as service:
        url = f"http://{service.address}/parts"
        second: list[subprocess.Popen[bytes]] = []

        def start_another(path: str) -> None:
            second.append(service.start(python, "thawd_parts.handler", task=task, tmp=tmp, PACKAGE_PARTS_URL=url))
            both.wait(300)

        service.before_body = start_another
        service.invoke({"n": 4})
        service.invoke({"n": 5})
        first = service.start(python, "thawd_parts.handler", task=task, tmp=tmp, PACKAGE_PARTS_URL=url)
        both.wait(300)
        answers = [service.next_answer() for _ in range(2)]
        for process in (first, *second):
            process.kill()
            process.wait()
        file = packages.files[part_key("f")].file
        assert {answer["n"] for _, answer in answers} <= {8, 10}
        assert {answer["text"] for _, answer in answers} == {"data"}
        assert all(Path(answer["large"]).is_relative_to(tmp) for _, answer in answers)
        assert service.fetched == {f"/parts/{file}": 1}


def test_a_split_package_fetches_its_part_from_s3(app: Project) -> None:
    file = made(app, form="split", parts_url="s3://bucket/prefix").files[part_key("f")].file
    task = unpacked(app, "task", ["f.zip"])
    with LambdaService(app.root / "out") as service:
        answer = service.answer(
            {"n": 4},
            bare_python(),
            "thawd_parts.handler",
            task=task,
            tmp=app.root / "tmp",
            AWS_ENDPOINT_URL=f"http://{service.address}",
        )
        assert answer["n"] == 8
        assert service.fetched in ({f"/bucket/prefix/{file}": 1}, {f"/prefix/{file}": 1})


def test_a_part_that_is_not_the_one_of_the_package_is_refused_and_not_kept(app: Project) -> None:
    packages = made(app, form="split")
    part = app.root / "out" / packages.files[part_key("f")].file
    good = part.read_bytes()
    task, tmp, python = unpacked(app, "task", ["f.zip"]), app.root / "tmp", bare_python()
    with LambdaService(app.root / "out") as service:
        url = {"PACKAGE_PARTS_URL": f"http://{service.address}"}
        for bad in (good[:4] + b"\0\0\0\1" + good[8:], good + b"more", good[:-200]):
            part.write_bytes(bad)
            error = service.answer({"n": 4}, python, "thawd_parts.handler", task=task, tmp=tmp, **url)
            assert f"the part http://{service.address}/{part.name} has the SHA-256" in error["errorMessage"]
            assert not [path for path in tmp.rglob("*") if path.is_dir() and path.parent != tmp]
        part.unlink()
        error = service.answer({"n": 4}, python, "thawd_parts.handler", task=task, tmp=tmp, **url)
        assert f"the part http://{service.address}/{part.name} of this package cannot be" in error["errorMessage"]
        part.write_bytes(good)
        assert service.answer({"n": 4}, python, "thawd_parts.handler", task=task, tmp=tmp, **url)["n"] == 8


def test_an_environment_that_is_killed_while_it_fetches_leaves_nothing_that_the_next_uses(app: Project) -> None:
    made(app, form="split")
    task, tmp, python = unpacked(app, "task", ["f.zip"]), app.root / "tmp", bare_python()
    with LambdaService(app.root / "out") as service:
        url = {"PACKAGE_PARTS_URL": f"http://{service.address}"}
        fetching, go_on = threading.Event(), threading.Event()
        service.before_body = lambda path: (fetching.set(), go_on.wait(300))
        process = service.start(python, "thawd_parts.handler", task=task, tmp=tmp, **url)
        assert fetching.wait(300)
        process.kill()
        process.wait()
        go_on.set()
        assert service.answer({"n": 4}, python, "thawd_parts.handler", task=task, tmp=tmp, **url)["n"] == 8
        [root] = tmp.iterdir()
        assert not list(root.glob("*.new"))


def test_packages_made_twice_are_the_same_bytes(app: Project) -> None:
    for form in ("zip", "layers", "split"):
        made(app, form=form, output=f"one-{form}")
        (app.root / "code" / "app.py").touch()
        made(app, form=form, output=f"two-{form}")
        assert contents(app.root / f"one-{form}") == contents(app.root / f"two-{form}")
        assert not list((app.root / f"one-{form}").glob(".new-*"))


def test_a_run_that_is_killed_leaves_the_packages_of_the_last_one(app: Project) -> None:
    made(app, form="split", tries_imports=False)
    out = app.root / "out"
    before = contents(out)
    app.code(
        CODE + "    import signal\n    open(os.environ['BEGUN'], 'w').write(f'{os.getpid()}\\n')\n    signal.pause()\n",
        "code/app.py",
    )
    begun = app.root / "begun"
    app.config(FUNCTION + f'environment = {{ BEGUN = "{begun}" }}\n')
    command = [sys.executable, "-m", "thawd", "package", "-o", "out", "--as", "split", "--architecture", HERE]
    process = subprocess.Popen(command, cwd=app.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: begun.exists() and begun.read_text(), what="the import of the handler")
    process.send_signal(signal.SIGKILL)
    process.wait()
    number = int(begun.read_text())
    eventually(lambda: has_ended(number), what="the end of the import")
    assert contents(out) == before
    assert list(out.glob(".new-*"))
    made(app, form="split", tries_imports=False)
    assert not list(out.glob(".new-*"))
    assert set(contents(out)) == {"f.zip", DOCUMENT, *(name for name in before if name.startswith("part-"))}
    assert contents(out)["f.zip"] != before["f.zip"]


def test_parts_that_no_package_needs_any_more_are_removed(app: Project, wheels: Path) -> None:
    made(app, form="split", tries_imports=False)
    make_wheel(
        wheels, "large", {"large/__init__.py": "def twice(n): return 3 * n\n"}, version="2.0", requires=["small"]
    )
    made(app, form="split", tries_imports=False)
    assert len(contents(app.root / "out")) == 3


def test_a_file_that_the_import_needs_is_kept_although_a_rule_takes_it_away(app: Project, wheels: Path) -> None:
    source = "import importlib\nname = 'te' + 'sts'\nimportlib.import_module('odd.' + name)\n"
    make_wheel(wheels, "odd", {"odd/__init__.py": source, "odd/tests/__init__.py": "", "odd/a.pyi": "A: int\n"})
    (app.root / "requirements.txt").write_text("large\nodd\n")
    app.code("import odd\n" + "def handler(event, context): pass\n", "code/app.py")
    packages = made(app)
    assert packages.trials["f"].state == "works"
    assert {it.rule for it in packages.prepared[0].removed} == {"stubs", "scripts", "installer"}
    said = "not left out, because the import of the handler needs such files: tests"
    assert packages.document()["functions"][0]["notes"] == [said]  # type: ignore[index]


def test_a_handler_that_cannot_be_imported_is_refused_with_its_error_and_nothing_is_written(app: Project) -> None:
    app.code("import absent\n\ndef handler(event, context): pass\n", "code/app.py")
    with pytest.raises(PackageError, match=r"(?s)functions\.f: .*No module named 'absent'.*--untried"):
        made(app)
    assert contents(app.root / "out") == {}
    assert made(app, tries_imports=False).files["f"].size_bytes > 0


def test_a_handler_whose_module_ends_the_process_is_refused(app: Project) -> None:
    app.code("import sys\nsys.exit(0)\n\ndef handler(event, context): pass\n", "code/app.py")
    with pytest.raises(PackageError, match="cannot be imported from the package:\nstatus 0"):
        made(app)


def test_the_trial_sees_no_package_of_this_machine(app: Project) -> None:
    app.code("import msgspec\n\ndef handler(event, context): pass\n", "code/app.py")
    with pytest.raises(PackageError, match="No module named 'msgspec'"):
        made(app)


def test_a_package_for_another_architecture_says_that_it_was_not_tried(app: Project) -> None:
    trial = made(app, architecture=ELSEWHERE).trials["f"]
    assert (trial.state, trial.detail) == ("not tried", f"programs for {ELSEWHERE} do not run on this machine")


def test_requirements_without_a_wheel_for_the_target_are_refused_by_name(app: Project, wheels: Path) -> None:
    make_wheel(wheels, "native", {"native.py": ""}, tag="cp313-cp313-manylinux_2_34_x86_64")
    (app.root / "requirements.txt").write_text("native\n")
    assert made(app, output=None, python=(3, 13), architecture="x86_64").plan.functions[0].form == "zip"
    for target in ({"python": (3, 13), "architecture": "arm64"}, {"python": (3, 12), "architecture": "x86_64"}):
        with pytest.raises(PackageError, match=r"(?s)functions\.f: .*native.*wheels"):
            made(app, **target)


def test_a_wheel_that_was_built_for_one_machine_is_refused(app: Project, wheels: Path) -> None:
    machine = platform.machine()
    make_wheel(wheels, "built", {"built.py": ""}, tag=f"py3-none-linux_{machine}")
    (app.root / "requirements.txt").write_text("built\n")
    with pytest.raises(PackageError, match=r"functions\.f: the wheel of built-1\.0 was built for one machine only"):
        made(app)


def test_where_uv_lacks_a_setting_pip_installs_for_this_machine_only(
    app: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_PREFER_BINARY", "1")
    packages = made(app)
    assert packages.trials["f"].state == "works"
    assert packages.plan.functions[0].inside == ("large", "small")
    with pytest.raises(
        PackageError, match=f"uv has no setting for pip's setting prefer-binary; .*not for .*{ELSEWHERE}"
    ):
        made(app, architecture=ELSEWHERE)


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        ("-e ./source\n", "would be built .*: ./source is to be installed as editable"),
        ("./source\n", "would be built .*: ./source is no wheel"),
        ("source @ https://a:b@c/source\n", "would be built .*: https://c/source is no wheel"),
        ("--no-binary=source\nsource\n", "would be built .*: it has the option --no-binary source"),
        ("source\n", "cannot be installed"),
        ("gone\n", "gone"),
    ],
)
def test_requirements_that_are_no_wheels_are_refused_and_not_built(
    app: Project, wheels: Path, monkeypatch: pytest.MonkeyPatch, requirements: str, said: str
) -> None:
    monkeypatch.setenv("PIP_NO_BINARY", "source")
    source = app.root / "source"
    source.mkdir()
    built = app.root / "built"
    (source / "backend.py").write_text(f"open({str(built)!r}, 'w')\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "source"\nversion = "1"\n'
    )
    with tarfile.open(wheels / "source-1.tar.gz", "w:gz") as archive:
        archive.add(source, "source-1")
    (app.root / "requirements.txt").write_text(requirements)
    with pytest.raises(PackageError, match=said):
        made(app)
    assert not built.exists()


def test_a_link_out_of_the_code_folder_is_refused_by_name(app: Project) -> None:
    (app.root / "code" / "out").symlink_to("/etc")
    with pytest.raises(PackageError, match=r"code/out is a link to /etc, which is outside"):
        made(app)


def test_a_file_of_the_code_with_the_path_of_a_requirements_file_is_refused(app: Project) -> None:
    (app.root / "code" / "small.py").write_text("A = 2\n")
    with pytest.raises(PackageError, match=r"two files would be small\.py in the package"):
        made(app)
    assert made(app, form="layers").trials["f"].state == "works"  # Lambda takes the one in the code folder


def test_requirements_beside_the_code_are_installed_as_well(app: Project) -> None:
    (app.root / "requirements.txt").rename(app.root / "code" / "requirements.txt")
    app.config(FUNCTION.replace('requirements = "requirements.txt"\n', ""))
    packages = made(app)
    assert packages.plan.functions[0].inside == ("large", "small")
    assert list(packages.prepared[0].notes) == [
        "requirements.txt is in the code folder, so the package contains what it requires"
    ]


def test_an_output_folder_in_the_code_folder_is_no_part_of_the_package(app: Project) -> None:
    made(app, output="code/out")
    first = contents(app.root / "code/out")
    made(app, output="code/out")
    assert contents(app.root / "code/out") == first


def test_programs_of_another_kind_are_packed_without_requirements(app: Project) -> None:
    (app.root / "code" / "bootstrap").write_text("#!/bin/sh\n")
    (app.root / "code" / "bootstrap").chmod(0o755)
    app.config('[functions.f]\nhandler = "any"\ncode = "code"\nruntime = "provided.al2023"\n')
    packages = made(app)
    assert packages.plan.functions[0].runtime == "provided.al2023"
    assert packages.trials["f"].detail == "the handler is not Python"
    assert os.access(unpacked(app, "task", ["f.zip"]) / "bootstrap", os.X_OK)


def test_an_image_is_made_by_the_builder_of_images_or_refused_with_the_reason(
    app: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_images: list[tuple[str, Path]] = []

    def write(config_path: Path, function: str, file: Path, not_copied: tuple[Path, ...]) -> str:
        made_images.append((function, file))
        assert not_copied == (app.root / "out",)
        return "sha256:1"

    monkeypatch.setattr("thawd.cli.image.write_function_image", write)
    monkeypatch.chdir(app.root)
    arguments = ["package", "--as", "image", "-o", "out", "--architecture"]
    done = CliRunner().invoke(main, [*arguments, HERE])
    assert done.exit_code == 0, done.output
    assert made_images == [("f", Path("out/f.tar"))]
    assert "f: its image is out/f.tar (sha256:1)" in done.output
    for options in ([ELSEWHERE], [HERE, "--python", f"3.{sys.version_info[1]}"]):
        done = CliRunner().invoke(main, [*arguments, *options])
        assert done.exit_code == 1
        assert "the image of f was not made: images " in done.output
    assert len(made_images) == 1


def test_the_command_shows_the_plan_the_rules_and_the_page(app: Project) -> None:
    done = app.command("package", "f", "--architecture", HERE, "--explain", "--html", "size.html")
    assert done.returncode == 0, done.stderr
    assert "nothing was written; -o FOLDER writes the archives" in done.stdout
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert f"f         zip   python3.{sys.version_info[1]} {HERE}" in lines["f"]
    assert "tests" in lines and "folders named test" in done.stdout
    text = (app.root / "size.html").read_text()
    assert "<span>large</span>" in text and "large \N{RIGHTWARDS ARROW} small" in text
    assert "http://" not in text and "https://" not in text and "<script" not in text
    document = json.loads(app.command("package", "--json", "--architecture", HERE).stdout)
    assert document["functions"][0]["form"] == "zip"
    image = app.command("package", "--as", "image", "--architecture", HERE, "--explain").stdout
    assert "f: left out\nnothing: an image contains all files" in image
    assert app.command("package", "g").stderr.startswith("thawd: there is no function 'g'")


def test_a_page_escapes_the_names_of_files(app: Project) -> None:
    (app.root / "code" / "<b>.bin").write_bytes(b"\0" * 3_000_000)
    assert "<b>" not in page(made(app, output=None))
