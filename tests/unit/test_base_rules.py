"""Which versions may have a base, what a base starts with, and how two states of an interpreter are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from thawd.environments.starts.bases import difference, refusal, startup_variables
from thawd.environments.version import GUARDED, Version

from .execution_fakes import version_of

STATE: dict[str, Any] = {"modules": {"os": "/lib/os.py"}, "sys.path": ["/lib"], "variables": {b"A".hex(): b"1".hex()}}


def version(variables: dict[str, str] | None = None, **options: Any) -> Version:
    return replace(version_of(**options), variables={**(variables or {}), **options.get("environment", {})})


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "MALLOC_ARENA_MAX", "LC_ALL", "TZ", "HOME", "TMPDIR"])
def test_a_variable_that_is_read_at_the_start_of_a_process_refuses_a_base(name: str) -> None:
    refused = refusal(version(environment={name: "x", "OTHER": "y"}))
    assert refused == f"the function sets {name}, which a process reads only when it starts"


def test_other_variables_do_not_refuse_a_base() -> None:
    assert refusal(version(environment={"MODEL": "x", "OMP_NUM_THREADS": "1", "PATH": "/bin"})) is None


def test_a_wrapper_and_emulated_aws_refuse_a_base() -> None:
    assert refusal(replace(version(), wrapper=("/opt/wrap",))) is not None
    assert refusal(version({GUARDED: "local"})) is not None


def test_a_base_starts_with_variables_of_the_platform_alone() -> None:
    own = {"OMP_NUM_THREADS": "7", "SECRET_KEY": "s"}
    given = {"LANG": "C", "PATH": "/bin", "_HANDLER": "a.b", "AWS_SECRET_ACCESS_KEY": "k", "OMP_NUM_THREADS": "2"}
    assert startup_variables(version(given, environment=own)) == {"LANG": "C", "PATH": "/bin"}


def test_equal_states_do_not_differ() -> None:
    assert difference(STATE, {**STATE}) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"modules": {"os": "/other/os.py"}}, "modules (os)"),
        ({"modules": {"os": "/lib/os.py", "json": "/lib/json.py"}}, "modules (json)"),
        ({"modules": {}}, "modules (os)"),
        ({"sys.path": []}, "sys.path"),
        ({"variables": {b"A".hex(): b"secret".hex()}}, "variables (A)"),
    ],
)
def test_a_difference_is_named_without_values(changed: dict[str, Any], named: str) -> None:
    found = difference(STATE, {**STATE, **changed})
    assert found == f"a copy of the version's base differs in {named} from an interpreter started without the base"


def test_a_copy_without_a_report_differs() -> None:
    assert difference(STATE, None) == "the copy of the version's base did not report its state"
