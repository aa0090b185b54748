"""boto3 for functions that do not include it: offered last on the path, and never with incompatible packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.unit.interpreters_here import INTERPRETERS
from thawd.environments import boto3_for_functions
from thawd.runtime import sdk as in_function

RUNTIME = Path(in_function.__file__)
PROGRAM = f"""
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("runtime_sdk", {str(RUNTIME)!r})
sdk = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sdk)
sys.path.insert(0, sys.argv[1])
sdk.install()
"""


def run(python: str, own: Path, code: str, *, offered: str) -> tuple[str, str]:
    """Run a program in an interpreter whose own packages are in a folder. Return its output and errors."""
    own.mkdir(exist_ok=True)
    done = subprocess.run(
        [
            python,
            "-I",
            "-S",
            "-c",
            PROGRAM.replace("sdk.install()", f"os.environ['THAWD_BOTO3'] = {offered!r}\nsdk.install()") + code,
            str(own),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout.strip(), done.stderr.strip()


def version_of(python: str) -> tuple[int, int]:
    told = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:2])"], text=True).split()
    return int(told[0]), int(told[1])


def bring(own: Path, name: str, version: str, *, requires: str = "") -> None:
    """Install a package that has nothing but its version."""
    (own / name).mkdir(parents=True)
    (own / name / "__init__.py").write_text(f"__version__ = {version!r}\nOWN = True\n")
    (own / f"{name}-{version}.dist-info").mkdir()
    (own / f"{name}-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    )


@pytest.mark.parametrize("python", INTERPRETERS)
def test_each_interpreter_finds_boto3_or_a_reason(python: str, tmp_path: Path) -> None:
    offered = boto3_for_functions.boto3_for(version_of(python))
    code = """
try:
    import boto3, botocore, dateutil, jmespath, s3transfer, urllib3
    from importlib import metadata
    print(boto3.__version__, metadata.version("botocore") == botocore.__version__)
    print(boto3.client("sts", region_name="us-east-1").meta.region_name)
    print(any(one.metadata["Name"] == "boto3" for one in metadata.distributions()))
except ImportError as error:
    print("none:", sdk.hint(error))
"""
    said, errors = run(python, tmp_path / "own", code, offered=offered)
    if "modules" in json.loads(offered):
        assert said.splitlines() == [f"{boto3.__version__} True", "us-east-1", "False"], errors
    else:
        assert said.startswith("none: ")
        assert "needs Python" in said


def test_what_the_function_brings_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "own"
    bring(own, "boto3", "1.2.3")
    offered = boto3_for_functions.boto3_for(sys.version_info[:2])
    code = "import boto3; print(boto3.OWN)\ntry:\n import botocore\nexcept ImportError as e:\n print(sdk.hint(e))"
    said, errors = run(sys.executable, own, code, offered=offered)
    assert said.splitlines()[0] == "True", errors
    assert "without all packages that boto3 needs" in said


@pytest.mark.parametrize(
    ("name", "version", "taken"),
    [("urllib3", "1.26.20", True), ("urllib3", "1.20", False), ("botocore", "1.29.0", False), ("six", "1.16.0", True)],
)
def test_mixtures_that_do_not_go_together_are_refused(tmp_path: Path, name: str, version: str, taken: bool) -> None:
    own = tmp_path / "own"
    bring(own, name, version)
    offered = boto3_for_functions.boto3_for(sys.version_info[:2])
    code = f"""
import {name}
assert {name}.OWN
import importlib.util
print(importlib.util.find_spec("boto3") is not None)
print(sdk.hint(ModuleNotFoundError(name="boto3")))
"""
    said, errors = run(sys.executable, own, code, offered=offered)
    assert said.splitlines()[:1] == [str(taken)], errors
    if not taken:
        assert f"{name} {version}, which is not compatible with thawd's boto3" in said
        assert "Name boto3 in the function's requirements" in said


def test_no_boto3_beside_thawd_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise boto3_for_functions.PackageNotFoundError(name)

    monkeypatch.setattr(boto3_for_functions, "distribution", missing)
    for cached in (boto3_for_functions._closure, boto3_for_functions._offer):
        monkeypatch.setattr(boto3_for_functions, cached.__name__, cached.__wrapped__)
    offered = boto3_for_functions.boto3_for((3, 11))
    code = "try:\n import boto3\nexcept ImportError as e:\n print(e, '-', sdk.hint(e))"
    said, errors = run(sys.executable, tmp_path / "own", code, offered=offered)
    assert said.startswith("No module named 'boto3' - boto3 is neither in the function's code"), errors


@pytest.mark.parametrize(
    ("version", "comparisons", "allowed"),
    [
        ("1.44.5", [("<", "1.45.0"), (">=", "1.44.5")], True),
        ("1.44.4", [("<", "1.45.0"), (">=", "1.44.5")], False),
        ("2.2.0", [("!=", "2.2.0"), ("<", "3")], False),
        ("2.8", [("~=", "2.7")], True),
        ("3.0", [("~=", "2.7")], False),
        ("1.45.0rc1", [("<", "1.45.0")], False),
    ],
)
def test_comparisons(version: str, comparisons: list[tuple[str, str]], allowed: bool) -> None:
    assert in_function._allowed(version, [list(one) for one in comparisons]) is allowed
