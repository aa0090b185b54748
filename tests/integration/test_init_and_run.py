"""``thawd init`` and ``thawd run``: from an empty folder, or from a file of code, to the first correct answer."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from thawd.cli.init import KINDS, TEMPLATES, init
from thawd.cli.run import run, split
from thawd.environments.debugging import FIRST_PORT
from thawd.recognition.served_files import place_of

from .conftest import Project, Running, eventually

TRANSFORMERS = """
def pipeline(task, model):
    assert (task, model) == ("text-classification", "distilbert/distilbert-base-uncased-finetuned-sst-2-english")
    return lambda texts: [{"label": "POSITIVE" if "like" in text else "NEGATIVE", "score": 0.9} for text in texts]
"""
"""Stands in for the package, which would fetch a model."""

ANSWERS = {
    "http": '{"score": 2}',
    "bucket": "the",
    "fastapi": '{"text":"Hello, Ada!"}',
    "stream": "one two three ",
    "huggingface": '[{"label": "POSITIVE", "score": 0.9}]',
    "sklearn": '"setosa": 0.98',
    "onnx": "[[2.0, 4.0], [6.0, 8.0]]",
}

MISFITS = {
    "onnx": {"[5.1, 3.5]": "the model takes ['rows', 'columns']", "[]": "the model takes", '[["a"]]': "number"},
    "sklearn": {"[5.1, 3.5]": "object", '{"sepal_length": 5.1}': "sepal_width"},
}
"""Bodies that do not fit the templates' models, each with words of the refusal."""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_template_leads_from_an_empty_folder_to_an_answer(kind: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    made = project.command("init", kind)
    assert made.returncode == 0, made.stderr
    before, up, after = _commands(made.stdout)
    if kind == "huggingface" and (tmp_path / "requirements.txt").exists():
        project.code(TRANSFORMERS, "transformers.py")
        config = tmp_path / "thawd.toml"
        config.write_text(config.read_text().replace('requirements = "requirements.txt"\n', ""))
    assert not re.search(r"note:|mistake in", project.command("check").stdout)
    for command in before:
        _shell(command, tmp_path)
    assert up == "thawd up --watch"
    with project.up("--watch", environ={"THAWD_PORT": "0"}) as server:
        for command in after[:-1]:
            _shell(command, tmp_path)
        last = after[-1].replace("http://127.0.0.1:8350", server.url)
        if last.startswith("thawd "):
            eventually(lambda: ANSWERS[kind] in project.command(*last.split()[1:]).stdout, what="the row")
        else:
            assert ANSWERS[kind] in _shell(last, tmp_path)
        for body, words in MISFITS.get(kind, {}).items():
            assert words in _refusal(server, "/predict", body)


def _refusal(server: Running, path: str, body: str) -> str:
    request = urllib.request.Request(f"{server.url}{path}", body.encode(), {"content-type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    with refused.value as answer:
        assert answer.code == 422
        return answer.read().decode()


def _commands(printed: str) -> tuple[list[str], str, list[str]]:
    """The commands that ``thawd init`` tells to type: those before the server starts, its start, and those after."""
    commands = [line.strip() for line in printed.partition("next:\n")[2].splitlines()]
    at = next(index for index, command in enumerate(commands) if command.startswith("thawd up"))
    return commands[:at], commands[at], commands[at + 1 :]


def _shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "OPENBLAS_NUM_THREADS": "1"}  # more would wait for each other
    command = command.replace("curl ", "curl -s --fail-with-body ")
    done = subprocess.run(command, shell=True, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_every_template_is_complete() -> None:
    assert {folder.name for folder in TEMPLATES.iterdir()} == set(KINDS) == set(ANSWERS)
    for folder in TEMPLATES.iterdir():
        assert {"app.py.txt", "thawd.toml.txt", "next.txt"} <= {file.name for file in folder.iterdir()}


def test_a_template_whose_packages_are_missing_names_them(tmp_path: Path) -> None:
    packages = {name: Path(sys.executable) for name in ("transformers", "torch")}
    made = Project(tmp_path).command("init", "huggingface", "here")
    if "requirements.txt" not in made.stdout:
        pytest.skip(f"{', '.join(packages)} are installed")
    assert (tmp_path / "here" / "requirements.txt").read_text() == "transformers\ntorch\n"
    assert 'requirements = "requirements.txt"' in (tmp_path / "here" / "thawd.toml").read_text()


@pytest.mark.parametrize(
    ("kind", "package", "script"), [("sklearn", "scikit-learn", "train"), ("onnx", "onnx", "make_model")]
)
def test_packages_that_a_script_of_a_template_needs_are_installed_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str, script: str
) -> None:
    monkeypatch.setattr("thawd.recognition.imports.has", lambda module: False)
    made = CliRunner().invoke(init, [kind, str(tmp_path)])
    install, run_script = _commands(made.output)[0][-2:]
    assert install.startswith(f"python -m pip install {package}  # for {script}.py; ")
    assert run_script == f"python {script}.py"
    assert ("onnx\n" in (tmp_path / "requirements.txt").read_text()) is False


@pytest.mark.parametrize("kind", sorted(kind for kind in KINDS if KINDS[kind].script is not None))
def test_a_model_that_is_there_already_is_served_and_not_made_again(tmp_path: Path, kind: str) -> None:
    script = KINDS[kind].script
    assert script is not None
    (tmp_path / script.model).write_bytes(b"mine")
    made = CliRunner().invoke(init, [kind, str(tmp_path)])
    assert [command for command in _commands(made.output)[0] if not command.startswith("cd ")] == []
    assert not (tmp_path / script.name).exists()
    assert f"app.py serves {tmp_path / script.model}, which is there already" in made.output
    # The script of another folder, or of a time before the model was there.
    (tmp_path / script.name).write_text((TEMPLATES / kind / f"{script.name}.txt").read_text())
    refused = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (refused.returncode, (tmp_path / script.model).read_bytes()) == (1, b"mine")
    assert f"{script.model} is there already" in refused.stderr


def test_init_writes_how_vs_code_attaches_and_leaves_a_users_own_file(tmp_path: Path) -> None:
    launch = tmp_path / "one" / ".vscode" / "launch.json"
    assert "launch.json" in CliRunner().invoke(init, ["http", str(tmp_path / "one")]).stdout
    (configuration,) = json.loads(launch.read_text())["configurations"]
    assert configuration["connect"] == {"host": "127.0.0.1", "port": FIRST_PORT}
    described = Path(__file__).parents[2] / "docs" / "how-to" / "debug.md"
    assert launch.read_text() in described.read_text()
    own = tmp_path / "two" / ".vscode" / "launch.json"
    own.parent.mkdir(parents=True)
    own.write_text("own")
    assert "launch.json" not in CliRunner().invoke(init, ["http", str(tmp_path / "two")]).stdout
    assert own.read_text() == "own"


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code("mine = 1")
    refused = project.command("init", "http")
    assert (refused.returncode, (tmp_path / "app.py").read_text()) == (1, "mine = 1")
    assert "app.py exists already" in refused.stderr
    assert not (tmp_path / "thawd.toml").exists()


def test_init_writes_a_configuration_for_code_that_is_there(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code("from fastapi import FastAPI\napp = FastAPI()\n@app.get('/')\ndef index(): return 'i'\n", "shop.py")
    project.code("import thawd\n@thawd.function\ndef double(n: int) -> int: return 2 * n\n", "typed.py")
    project.code("def handler(event, context): return 'h'\n", "plain.py")
    project.code("print('a script')\n", "script.py")
    made = project.command("init")
    assert made.returncode == 0, made.stderr
    with project.up(environ={"THAWD_PORT": "0"}) as server:
        assert _get(server, "/") == '"i"'
        assert _get(server, "/double?n=4") == "8"
        assert _get(server, "/plain") == "h"


def _get(server: Running, path: str) -> str:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def test_run_serves_a_file_and_its_changes(tmp_path: Path) -> None:
    project = Project(tmp_path)
    code = "import thawd\n@thawd.function\ndef double(n: int) -> int: return 2 * n\n"
    project.code(code)
    with project.run("app.py") as server:
        assert _get(server, "/?n=4") == "8"
        assert json.loads(_get(server, "/openapi.json"))["paths"].keys() == {"/"}
        assert project.command("invoke", "double", "-p", '{"n": 5}').stdout.strip() == "10"
        project.code(code.replace("2 *", "3 *"))
        eventually(lambda: _get(server, "/?n=4") == "12", what="the new code")
    assert not (tmp_path / "thawd.toml").exists()


def test_run_serves_several_typed_functions_by_name(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code(
        "import thawd\n@thawd.function\ndef a() -> str: return 'a'\n@thawd.function\ndef b() -> str: return 'b'\n"
    )
    with project.run("app", "--no-watch") as server:
        assert (_get(server, "/a"), _get(server, "/b")) == ('"a"', '"b"')


@pytest.mark.parametrize(
    ("code", "target", "message"),
    [
        ("X = 1\n", "app.py", "app.py contains nothing to serve"),
        ("def a(event, context): 1\n", "ap.py", "there is no file ap.py; there is app.py"),
        ("def a(event, context): 1\n", "app.py:b", "has no b; there is a (Lambda handler)"),
        (
            "import no_such_package\ndef handler(event, context): 1\n",
            "app.py",
            "app.py:1 imports no_such_package, which",
        ),
    ],
)
def test_run_says_why_it_serves_nothing(tmp_path: Path, code: str, target: str, message: str) -> None:
    project = Project(tmp_path)
    project.code(code)
    refused = project.command("run", target)
    assert refused.returncode == 1
    assert message in refused.stderr


def test_names_that_functions_cannot_have_are_replaced_by_different_ones(tmp_path: Path) -> None:
    project = Project(tmp_path)
    declared = (f"@thawd.function\ndef {name}(n: int) -> str: return {name!r}\n" for name in ("größe", "grüße"))
    project.code("import thawd\n" + "".join(declared))
    with project.run("app.py", "--no-watch") as server:
        assert json.loads(_get(server, "/gr--e?n=1")) == "größe"
        assert json.loads(_get(server, "/gr--e-2?n=1")) == "grüße"
    assert project.command("init").returncode == 0
    assert project.command("check").returncode == 0


@pytest.mark.parametrize("target", ["./app", "../here/app", "here", "../here/app.py:handler"])
def test_run_finds_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    (tmp_path / "here" / "here").mkdir(parents=True)
    for folder in (tmp_path / "here", tmp_path / "here" / "here"):
        (folder / "app.py").write_text("def handler(event, context): 1\n")
    monkeypatch.chdir(tmp_path / "here")
    file, _ = split(target)
    assert file.resolve() == tmp_path / "here" / ("here/app.py" if target == "here" else "app.py")


def _package(project: Project, *, marker: bool = True) -> None:
    if marker:
        project.code("", "chat/__init__.py")
    code = "from fastapi import FastAPI\nfrom .inner import word\napp = FastAPI()\n"
    code += "@app.get('/')\ndef index(): return word\n"
    project.code(code, "chat/app.py")
    project.code("word = 'in a package'\n", "chat/inner.py")


@pytest.mark.parametrize(("target", "marker"), [("chat/app.py", True), ("chat.app:app", False)])
def test_run_serves_a_file_in_a_package(tmp_path: Path, target: str, marker: bool) -> None:
    project = Project(tmp_path)
    _package(project, marker=marker)
    with project.run(target, "--no-watch") as server:
        assert _get(server, "/") == '"in a package"'
    assert sorted(each.name for each in (tmp_path / "chat").iterdir() if each.name != "__pycache__") == [
        *(["__init__.py"] if marker else []),
        "app.py",
        "inner.py",
    ]


def test_a_file_is_imported_as_its_imports_need_it(tmp_path: Path) -> None:
    for name in ("a/__init__.py", "a/b/__init__.py", "a/inner.py", "plain/app.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a/app.py").write_text("from .inner import x\n")
    (tmp_path / "a/script.py").write_text("import inner\n")
    cases = {"a/app.py": "a.app", "a/__init__.py": "a", "a/b/__init__.py": "a.b"}
    for name, module in cases.items():
        assert place_of(tmp_path / name) == (tmp_path, module)
    assert place_of(tmp_path / "a/script.py") == (tmp_path / "a", "script")
    assert place_of(tmp_path / "plain/app.py") == (tmp_path / "plain", "app")


def test_init_finds_an_application_in_a_package_and_in_a_folder(tmp_path: Path) -> None:
    project = Project(tmp_path)
    _package(project)
    project.code("from flask import Flask\nimport beside\nsite = Flask(__name__)\n", "other/web.py")
    project.code("", "other/beside.py")
    project.code("from flask import Flask\napp = Flask(__name__)\n", "tests/app.py")
    made = project.command("init")
    assert made.returncode == 0, made.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == [".vscode", "chat", "other", "tests", "thawd.toml"]
    assert '[functions.chat]\nhandler = "chat.app.app"\n\n' in (tmp_path / "thawd.toml").read_text()
    assert '[functions.site]\nhandler = "web.site"\ncode = "other"\n' in (tmp_path / "thawd.toml").read_text()
    assert project.command("check").returncode == 0


def test_init_writes_no_sample_beside_code_in_which_it_finds_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code("X = 1\n", "src/chat/settings.py")
    refused = project.command("init")
    assert refused.returncode == 1
    assert "there is no application, typed function or handler in the Python files of" in refused.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["src"]


def test_a_file_that_python_cannot_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("def handler(event, context): 1\n")
    refused = CliRunner().invoke(run, [str(tmp_path / "script")])
    assert refused.exit_code == 1
    assert "script cannot be imported: rename it to script.py" in refused.stderr


def test_a_second_run_in_a_folder_changes_nothing_of_what_the_first_serves(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code("def handler(event, context): return 'first'\n", "first.py")
    project.code("def handler(event, context): return 'second'\n", "second.py")
    with project.run("first.py") as server:
        assert _get(server, "/") == "first"
        assert stat.S_IMODE((tmp_path / ".thawd").stat().st_mode) == 0o700
        made = (tmp_path / ".thawd/run/thawd.toml").read_text()
        refused = project.command("run", "second.py", "--port", "0")
        assert refused.returncode == 1
        assert f"serves a file in {tmp_path} with `thawd run`: stop it, or move" in refused.stderr
        assert (tmp_path / ".thawd/run/thawd.toml").read_text() == made
        assert _get(server, "/") == "first"


def test_run_leaves_a_folder_with_a_configuration_to_up(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code("def handler(event, context): 1\n")
    project.config("")
    assert "has a thawd.toml" in project.command("run", "app.py").stderr


def test_check_describes_handlers_and_finds_their_mistakes(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.code("def handler(event, context): return open('.venv/a')\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "a").touch()
    config = """
    [functions.plain]
    handler = "app.handler"
    url = { auth_type = "NONE", invoke_mode = "RESPONSE_STREAM" }
    environment = { TOKEN = "secret-${API_TOKEN}", PRICE = "$5" }
    """
    project.config(config)
    done = project.command("check")
    assert done.returncode == 0
    assert "plain: app.handler, Lambda handler" in done.stdout
    assert "the handler streams nothing" in done.stdout
    assert "functions.plain.environment.TOKEN: the function gets the characters ${API_TOKEN} as they" in done.stdout
    assert "secret-" not in done.stdout and "PRICE" not in done.stdout
    assert "app.py:1 names .venv/a, which copies of the code do not contain" in done.stdout
    project.config(config + 'python = "2.7"\n')
    assert "functions.plain.python" in project.command("check").stderr
    project.config(config.replace("app.handler", "app.handle"))
    assert (
        "functions.plain.handler: app.py has no `handle`; did you mean app.handler?" in project.command("check").stderr
    )
