"""``[runtimes]`` and the priming event of a function in ``thawd.toml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, only_mistake
from thawd import config
from thawd.errors import ConfigurationError
from thawd.invocation import MAX_PAYLOAD_BYTES


def test_an_interpreter_may_be_named_for_each_runtime_that_has_one(tmp_path: Path) -> None:
    text = "[runtimes]\n'nodejs20.x' = '/opt/node/bin/node'\n'python3.12' = '/usr/bin/python3.12'\n"
    assert load(tmp_path, HELLO + text).runtimes == {
        "nodejs20.x": "/opt/node/bin/node",
        "python3.12": "/usr/bin/python3.12",
    }
    assert load(tmp_path, HELLO).runtimes == {}


@pytest.mark.parametrize("name", ["provided.al2023", "cobol1985"])
def test_a_runtime_that_has_no_interpreter_here_is_refused_with_those_that_have(tmp_path: Path, name: str) -> None:
    problem = only_mistake(tmp_path, HELLO + f"[runtimes]\n'{name}' = '/opt/x'\n")
    assert problem.key in (f'runtimes."{name}"', f"runtimes.{name}")
    assert "python3.12" in problem.allowed
    assert "provided" not in problem.allowed


def test_an_interpreter_that_is_no_text_is_refused_at_its_runtime(tmp_path: Path) -> None:
    assert only_mistake(tmp_path, HELLO + "[runtimes]\n'nodejs20.x' = 5\n").key == 'runtimes."nodejs20.x"'
    assert only_mistake(tmp_path, "runtimes = 5\n" + HELLO).key == "runtimes"


def test_an_environment_variable_adds_interpreters(tmp_path: Path) -> None:
    file = tmp_path / "thawd.toml"
    file.write_text(HELLO + "[runtimes]\n'nodejs20.x' = '/opt/node'\n'python3.12' = 'python3.12'\n")
    environ = {"THAWD_RUNTIMES": "python3.14=python3.11,nodejs20.x=node"}
    assert config.load(file, environ=environ).runtimes == {
        "nodejs20.x": "node",
        "python3.12": "python3.12",
        "python3.14": "python3.11",
    }


@pytest.mark.parametrize("text", ["python3.14", "cobol1985=cobol", "provided.al2=x", "python3.14="])
def test_a_malformed_environment_variable_is_refused_with_an_example(tmp_path: Path, text: str) -> None:
    file = tmp_path / "thawd.toml"
    file.write_text(HELLO)
    with pytest.raises(ConfigurationError) as refused:
        config.load(file, environ={"THAWD_RUNTIMES": text})
    (problem,) = refused.value.problems
    assert "such as python3.14=python3.11" in problem.allowed


def test_an_event_that_primes_a_function_may_be_as_large_as_any_payload(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text('"' + "x" * (MAX_PAYLOAD_BYTES - 2) + '"')
    assert load(tmp_path, HELLO + "prime = 'event.json'\n").functions["hello"].prime == file.read_bytes()
    file.write_text('"' + "x" * (MAX_PAYLOAD_BYTES - 1) + '"')
    problem = only_mistake(tmp_path, HELLO + "prime = 'event.json'\n")
    assert problem.key == "functions.hello.prime"
