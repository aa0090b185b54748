"""The tests' plugin `tests.whole_files`: a worker that imports only the files it runs reports the same as any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from tests.whole_files import register as pytest_configure
from pathlib import Path

def note(text):
    with Path(__file__).with_name("notes").open("a") as notes:
        print(text, file=notes)

@pytest.fixture(scope="session", autouse=True)
def worker():
    yield
    note("worker ends")

@pytest.fixture(scope="module", autouse=True)
def module(request):
    note(request.node.name)
    yield
    note("module ends")
"""
FILES = {
    "conftest.py": CONFTEST,
    "a/test_one.py": """
import pytest, sys
@pytest.mark.parametrize("number", range(3))
def test_number(number):
    assert number != 1
def test_no_other_file_is_imported_yet():
    assert "test_three" not in sys.modules
""",
    "b/test_two.py": "raise OSError('cannot be imported')\ndef test_it(): pass\n",
    "c/test_three.py": """
import pytest
@pytest.fixture
def broken_start():
    raise OSError
@pytest.fixture
def broken_end():
    yield
    raise OSError
def test_it(): pass
def test_skipped(): pytest.skip("why")
def test_start(broken_start): pass
def test_end(broken_end): pass
""",
}


def test_all_tests_of_each_file_are_reported_and_fixtures_end_with_their_file_or_with_the_worker(
    tmp_path: Path,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    options = [
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "-q",
        "-n",
        "1",
        "--dist",
        "loadfile",
        "-rfEps",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    reports = [
        line.partition(" - ")[0]
        for line in run.stdout.splitlines()
        if line[:6] in ("PASSED", "FAILED", "ERROR ", "SKIPPE")
    ]
    assert sorted(reports) == [
        "ERROR b/test_two.py",
        "ERROR c/test_three.py::test_end",
        "ERROR c/test_three.py::test_start",
        "FAILED a/test_one.py::test_number[1]",
        "PASSED a/test_one.py::test_no_other_file_is_imported_yet",
        "PASSED a/test_one.py::test_number[0]",
        "PASSED a/test_one.py::test_number[2]",
        "PASSED c/test_three.py::test_end",
        "PASSED c/test_three.py::test_it",
        "SKIPPED [1] c/test_three.py:11: why",
    ], run.stdout + run.stderr
    assert run.returncode == 1
    notes = ["test_one.py", "module ends", "test_three.py", "module ends", "worker ends"]
    assert (tmp_path / "notes").read_text().splitlines() == notes
