"""Which program a function's runtime selects: found, configured or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thawd import config
from thawd.environments.runtime_programs import (
    Program,
    check_program,
    find_program,
    python_of,
    runs_a_program,
    variables_of_program,
)
from thawd.errors import ConfigurationError, EnvironmentBuildError
from thawd.resources import NODE_RUNTIMES, PROVIDED_RUNTIMES, PYTHON_RUNTIMES, RUNTIMES, Function


def function(runtime: str | None, **others: Any) -> Function:
    return Function(name="f", handler="index.handler", code=Path("/code"), runtime=runtime, **others)


def command(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def find(tmp_path: Path, runtime: str, *, roots: tuple[Path, ...] = (), **runtimes: str) -> Program:
    return find_program(
        function(runtime),
        roots=roots or (tmp_path,),
        runtimes=runtimes,
        folder=tmp_path,
        environ={"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home")},
    )


def test_each_runtime_is_of_one_kind() -> None:
    assert [name for name in RUNTIMES if runs_a_program(function(name))] == [*NODE_RUNTIMES, *PROVIDED_RUNTIMES]
    assert not runs_a_program(function(None))


def test_the_python_of_a_runtime_is_its_version_unless_configured() -> None:
    assert python_of(function("python3.12"), {}) == "3.12"
    assert python_of(function("python3.12"), {"python3.12": "/opt/python"}) == "/opt/python"
    assert python_of(function(None, python="3.9"), {"python3.9": "/opt/python"}) == "3.9"
    assert python_of(function(None), {}) is None
    assert PYTHON_RUNTIMES[0] == "python3.9"


def test_a_node_of_the_major_version_is_taken_from_the_path(tmp_path: Path) -> None:
    command(tmp_path / "bin" / "node", "echo v18.1.0")
    node = command(tmp_path / "bin" / "node20", "echo v20.3.1")

    program = find(tmp_path, "nodejs20.x")

    assert program.path == node
    assert program.title == "nodejs:20.3.1"
    assert Path(program.argv[1]).is_file()


@pytest.mark.parametrize(
    "place", [".nvm/versions/node/v20.1.0/bin", ".local/share/fnm/node-versions/v20.1.0/installation/bin"]
)
def test_a_version_managers_node_is_found(tmp_path: Path, place: str) -> None:
    node = command(tmp_path / "home" / place / "node", "echo v20.1.0")

    assert find(tmp_path, "nodejs20.x").path == node


def test_a_node_of_another_version_is_refused_unless_it_was_named(tmp_path: Path) -> None:
    command(tmp_path / "bin" / "node", "echo v18.1.0")

    with pytest.raises(EnvironmentBuildError, match=r"it is Node 18\.1\.0.*Install Node 20"):
        find(tmp_path, "nodejs20.x")
    assert find(tmp_path, "nodejs20.x", **{"nodejs20.x": "node"}).title == "nodejs:18.1.0"
    assert find(tmp_path, "nodejs20.x", **{"nodejs20.x": "bin/node"}).path == tmp_path / "bin" / "node"


@pytest.mark.parametrize("text", ["exit 1", "echo hello", "exit 0"])
def test_what_does_not_tell_nodes_version_is_refused(tmp_path: Path, text: str) -> None:
    command(tmp_path / "bin" / "node", text)

    with pytest.raises(EnvironmentBuildError, match="does not report its version"):
        find(tmp_path, "nodejs20.x")


def test_a_runtime_can_be_checked_before_there_is_code(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    check_program(function("provided.al2"), runtimes={}, folder=tmp_path, environ=environ)

    with pytest.raises(EnvironmentBuildError, match="found nothing"):
        check_program(function("nodejs22.x"), runtimes={}, folder=tmp_path, environ=environ)


def test_the_bootstrap_of_the_code_goes_before_that_of_a_layer(tmp_path: Path) -> None:
    layer = command(tmp_path / "layer" / "bootstrap", "")
    code = tmp_path / "code"
    code.mkdir()

    assert find(tmp_path, "provided", roots=(code, layer.parent)).argv[-1] == str(layer)
    own = command(code / "bootstrap", "")
    assert find(tmp_path, "provided", roots=(code, layer.parent)).argv[-1] == str(own)


def test_extensions_are_the_executables_of_code_and_layers_each_name_once(tmp_path: Path) -> None:
    code, layer = tmp_path / "code", tmp_path / "layer"
    command(code / "bootstrap", "")
    one = command(code / "extensions" / "one", "")
    command(layer / "extensions" / "one", "")
    two = command(layer / "extensions" / "two", "")
    (layer / "extensions" / "README").write_text("no program")
    (layer / "extensions" / "folder").mkdir()

    assert find(tmp_path, "provided", roots=(code, layer)).extensions == (one, two)


def test_variables_are_those_of_the_runtime(tmp_path: Path) -> None:
    shared = {"AWS_EXECUTION_ENV": "AWS_Lambda_python3.11", "ORT_DISABLE_TELEMETRY": "1", "LAMBDA_TASK_ROOT": "/task"}
    node = Program("nodejs20.x", ("/node",), "nodejs:20.0.0", snap_start=False)
    provided = Program("provided", ("/task/bootstrap",), "provided", snap_start=True)

    made = variables_of_program(function("nodejs20.x"), node, shared)
    assert made["AWS_EXECUTION_ENV"] == "AWS_Lambda_nodejs20.x"
    assert "ORT_DISABLE_TELEMETRY" not in made
    made = variables_of_program(function("provided", environment={"ORT_DISABLE_TELEMETRY": "1"}), provided, shared)
    assert "AWS_EXECUTION_ENV" not in made
    assert made["ORT_DISABLE_TELEMETRY"] == "1"
    assert made["LAMBDA_RUNTIME_DIR"] == "/task"


def read(tmp_path: Path, text: str) -> config.Settings:
    (tmp_path / "thawd.toml").write_text(text)
    return config.load(tmp_path / "thawd.toml", environ={})


def mistake(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, text)
    (problem,) = refused.value.problems
    return f"{problem.key}: {problem.found}; {problem.allowed}"


def test_runtimes_and_their_interpreters_are_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        '[functions.a]\nhandler = "any-text/like:this"\nruntime = "provided.al2023"\n'
        + '[functions.b]\nhandler = "src/index.api.get"\nruntime = "nodejs22.x"\n'
        + '[runtimes]\n"nodejs22.x" = "/opt/node"\n"python3.9" = "python3.9"\n',
    )

    assert settings.functions["a"].runtime == "provided.al2023"
    assert settings.functions["b"].handler == "src/index.api.get"
    assert settings.runtimes == {"nodejs22.x": "/opt/node", "python3.9": "python3.9"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[functions.f]\nhandler = "a.b"\nruntime = "ruby3.3"', 'functions.f.runtime: "ruby3.3"; "python3.9" to'),
        (
            '[functions.f]\nhandler = "ab"\nruntime = "python3.12"',
            'functions.f.handler: "ab"; a text "module.function"',
        ),
        ('[functions.f]\nhandler = "a b"\nruntime = "provided"', 'functions.f.handler: "a b"; '),
        ('[functions.f]\nhandler = "a.b"\nruntime = "python3.12"\npython = "3.12"', "functions.f.python: "),
        ('[functions.f]\nhandler = "a.b"\nruntime = "nodejs20.x"\npython = "3.12"', "functions.f.python: "),
        ('[functions.f]\nhandler = "a.b"\nruntime = "provided"\nprime = { a = 1 }', "functions.f.prime: "),
        (
            '[runtimes]\n"ruby3.3" = "ruby"\n[functions.f]\nhandler = "a.b"',
            'runtimes."ruby3.3": ',
        ),
        ('[runtimes]\nprovided = "x"\n[functions.f]\nhandler = "a.b"', "runtimes.provided: "),
        ('[runtimes]\n"nodejs20.x" = 20\n[functions.f]\nhandler = "a.b"', 'runtimes."nodejs20.x": the number 20'),
        ('runtimes = "node"\n[functions.f]\nhandler = "a.b"', 'runtimes: the text "node"'),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, told: str) -> None:
    assert mistake(tmp_path, text).startswith(told)
