"""The functions of ``thawd.toml``: handlers, interpreters, virtual environments, priming events, options that must
match."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.config_files import HELLO, load, mistakes, only_mistake
from thawd.resources import Batch


@pytest.mark.parametrize("python", ["3.9", "3.14", "3.10.13", "python3", "/usr/bin/python3", ".venv", "~/venv"])
def test_versions_commands_and_paths_of_interpreters_are_taken(tmp_path: Path, python: str) -> None:
    assert load(tmp_path, HELLO + f'python = "{python}"').functions["hello"].python == python


@pytest.mark.parametrize("handler", ["a.b", "a.b.c", "a/b.c", "pkg/my-module.handler", "größe.lesen"])
def test_handlers_as_on_lambda_are_taken(tmp_path: Path, handler: str) -> None:
    settings = load(tmp_path, f'[functions.f]\nhandler = "{handler}"')

    assert settings.functions["f"].handler == handler


@pytest.mark.parametrize(
    "handler", ["", "handler", ".handler", "a.", "a..b", "a.b-c", "a b.c", "/a.b", "1a.b", "a." + "b" * 127]
)
def test_other_handlers_are_refused(tmp_path: Path, handler: str) -> None:
    assert only_mistake(tmp_path, f'[functions.f]\nhandler = "{handler}"').key == "functions.f.handler"


def test_a_missing_handler_is_told_with_an_example(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, "[functions.f]\nmemory_mb = 512")

    assert (problem.key, problem.found) == ("functions.f.handler", "nothing")
    assert "classify.handler" in problem.allowed


def test_options_directly_under_functions_are_told(tmp_path: Path) -> None:
    problem = only_mistake(tmp_path, '[functions]\nhandler = "a.b"')

    assert (problem.key, problem.allowed) == ("functions.handler", "a table of options")


@pytest.mark.parametrize(
    "name", ["AWS_LAMBDA_FUNCTION_NAME", "AWS_REGION", "_HANDLER", "LAMBDA_TASK_ROOT", "THAWD_KEY"]
)
def test_reserved_environment_variables_are_refused(tmp_path: Path, name: str) -> None:
    problem = only_mistake(tmp_path, HELLO + f"environment = {{ {name} = 'x' }}")

    assert (problem.key, problem.found) == (f"functions.hello.environment.{name}", "a reserved name")


def test_an_environment_of_more_than_4096_bytes_is_refused(tmp_path: Path) -> None:
    assert load(tmp_path, HELLO + f"environment = {{ AB = '{'x' * 4094}' }}")
    assert only_mistake(tmp_path, HELLO + f"environment = {{ AB = '{'x' * 4095}' }}").found == "4097 bytes"


def test_provisioned_environments_must_fit(tmp_path: Path) -> None:
    text = "[server]\nmax_environments = 3\nmemory_mb = 256\n" + HELLO
    text += "reserved_concurrency = 1\nprovisioned_concurrency = 4\nmemory_mb = 512"

    problems = mistakes(tmp_path, text)

    assert [(problem.key, problem.allowed) for problem in problems] == [
        (
            "server.max_environments",
            "at least 4, for reserved and provisioned concurrency, and for functions without either",
        ),
        ("functions.hello.provisioned_concurrency", "at most reserved_concurrency, which is 1"),
        ("functions.hello.memory_mb", "at most 256, which is server.memory_mb, the memory for all environments"),
    ]


# Batches


def test_a_batch_has_a_size_and_a_window(tmp_path: Path) -> None:
    function = load(tmp_path, HELLO + "batch = { size = 16, window_ms = 2.5 }").functions["hello"]
    assert function.batch == Batch(size=16, window_ms=2.5)
    assert function.most_in_environment == 16
    assert load(tmp_path, HELLO + "batch = { size = 1 }").functions["hello"].batch == Batch(size=1, window_ms=0)


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ("{}", "batch.size"),
        ("{ window_ms = 2 }", "batch.size"),
        ("{ size = 0 }", "batch.size"),
        ("{ size = 257 }", "batch.size"),
        ("{ size = true }", "batch.size"),
        ("{ size = 2, window_ms = -1 }", "batch.window_ms"),
        ("{ size = 2, window_ms = nan }", "batch.window_ms"),
        ("{ size = 2, wait_ms = 1 }", "batch.wait_ms"),
        ("16", "batch"),
    ],
)
def test_other_batches_are_refused(tmp_path: Path, batch: str, key: str) -> None:
    assert only_mistake(tmp_path, HELLO + f"batch = {batch}").key == f"functions.hello.{key}"


# Concurrency


def test_a_function_can_have_several_invocations_in_one_environment(tmp_path: Path) -> None:
    function = load(tmp_path, HELLO + "concurrency = 64").functions["hello"]
    assert (function.concurrency, function.most_in_environment) == (64, 64)
    assert load(tmp_path, HELLO).functions["hello"].concurrency == 1


@pytest.mark.parametrize(
    "options",
    [
        "concurrency = 0",
        "concurrency = 1001",
        "concurrency = true",
        "concurrency = 2\nbatch = { size = 2 }",
        'concurrency = 2\nruntime = "nodejs20.x"',
    ],
)
def test_another_concurrency_is_refused(tmp_path: Path, options: str) -> None:
    assert only_mistake(tmp_path, HELLO + options).key == "functions.hello.concurrency"


# Priming events


def test_a_priming_event_is_a_table_or_a_file_and_becomes_json(tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text('[1, "ü"]')
    text = HELLO + 'prime = { image = "a.png", sizes = [1, 2.5], deep = { x = true } }\n'

    assert json.loads(load(tmp_path, text).functions["hello"].prime or b"") == {
        "image": "a.png",
        "sizes": [1, 2.5],
        "deep": {"x": True},
    }
    assert load(tmp_path, HELLO + 'prime = "event.json"').functions["hello"].prime == '[1, "ü"]'.encode()
    assert load(tmp_path, HELLO).functions["hello"].prime is None


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "nothing at"),
        (b"{", "which is not JSON"),
        (b'"\xff"', "which is not JSON"),
        (b"[" * 100_000, "which is not JSON"),
        (b'"' + b"x" * 6_291_556 + b'"', "6291558 bytes"),
    ],
)
def test_a_file_that_is_no_event_is_told(tmp_path: Path, content: bytes | None, found: str) -> None:
    if content is not None:
        (tmp_path / "event.json").write_bytes(content)

    problem = only_mistake(tmp_path, HELLO + 'prime = "event.json"')

    assert problem.key == "functions.hello.prime"
    assert found in problem.found


@pytest.mark.parametrize("value", ["{ at = 2024-01-01 }", "{ x = nan }"])
def test_a_table_that_is_no_json_is_told(tmp_path: Path, value: str) -> None:
    problem = only_mistake(tmp_path, HELLO + f"prime = {value}")

    assert (problem.key, problem.found[:26]) == ("functions.hello.prime", "a table that is not JSON (")


def test_a_priming_event_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "event.json")

    problem = only_mistake(tmp_path, HELLO + 'prime = "event.json"')

    assert problem.found == f"something that is not a regular file at {tmp_path}/event.json"
