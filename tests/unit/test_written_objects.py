"""Objects that thawd writes for functions: they have the mode of any new file, and no temporary files are left."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from thawd.destinations.delivery import write_object
from thawd.errors import EnvironmentBuildError, StoreError
from thawd.publishing.interpreters import find_interpreter

SRC = Path(__file__).parents[2] / "src"
BY_FUNCTION = "import thawd; thawd.bucket('b').write('a/k', b'data')"
BY_DESTINATION = (
    "import os, json; from pathlib import Path; from thawd.destinations.delivery import write_object; "
    "write_object(Path(json.loads(os.environ['THAWD_BUCKETS'])['b']), 'a/k', b'data')"
)


def write(script: str, folder: Path, *, umask: int = 0o022, python: str = sys.executable) -> None:
    environ = {**os.environ, "THAWD_BUCKETS": json.dumps({"b": str(folder)}), "PYTHONPATH": str(SRC)}
    subprocess.run([python, "-c", script], env=environ, umask=umask, check=True)


@pytest.mark.parametrize("script", [BY_FUNCTION, BY_DESTINATION], ids=["function", "destination"])
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077, 0])
def test_an_object_gets_the_rights_of_any_new_file(tmp_path: Path, script: str, umask: int) -> None:
    for _ in range(2):
        write(script, tmp_path, umask=umask)
        made = tmp_path / "a/k"
        assert made.read_bytes() == b"data"
        assert stat.S_IMODE(made.stat().st_mode) == 0o666 & ~umask
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["k"]


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_a_function_of_another_python_writes_objects(tmp_path: Path, version: str) -> None:
    try:
        found = find_interpreter(version, environ=os.environ)
    except EnvironmentBuildError:
        pytest.skip(f"there is no Python {version}")
    write(BY_FUNCTION, tmp_path, python=str(found.path))
    assert stat.S_IMODE((tmp_path / "a/k").stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a/k").mkdir(parents=True)
    with pytest.raises(StoreError, match="could not be written"):
        write_object(tmp_path, "a/k", b"data")
    with pytest.raises(subprocess.CalledProcessError):
        write(BY_FUNCTION, tmp_path)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["k"]
