"""`thawd.stores.ignored_files`: what `.thawdignore` leaves out of packages, by git's rules."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from thawd.stores.code_copies import PackageStore
from thawd.stores.ignored_files import IgnoredFiles

RULES = """
# data
*.csv
/logs/
notes/*.md
**/cache
models/**
!models/keep.onnx
build?
[ab].txt
!important.csv
deep/**/leaf.py
\\#odd
"""
PATHS = [
    "a.csv",
    "deep/x.csv",
    "important.csv",
    "logs/today",
    "deep/logs/today",
    "notes/a.md",
    "notes/deep/a.md",
    "x/notes/a.md",
    "cache/a",
    "deep/cache/a",
    "models/a.onnx",
    "models/keep.onnx",
    "builds/x",
    "build/x",
    "a.txt",
    "c.txt",
    "deep/leaf.py",
    "deep/a/b/leaf.py",
    "#odd",
    "app.py",
]


@pytest.mark.in_memory
def test_rules_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    for path in PATHS:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / ".gitignore").write_text(RULES)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    asked = ["git", "check-ignore", "--no-index", *PATHS]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    ignored = {path.strip('"') for path in done.stdout.splitlines()}
    rules = IgnoredFiles(RULES)
    assert {path for path in PATHS if rules.leave_out_below(path)} == ignored


@pytest.mark.in_memory
def test_ignored_files_are_in_no_package_and_do_not_change_its_name(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "data").mkdir(parents=True)
    (code / "app.py").write_text("x = 1\n")
    (code / ".thawdignore").write_text("data/\n*.log\n")
    (code / "data" / "big.bin").write_text("1")
    store = PackageStore(tmp_path / "packages")
    first = store.publish(code)
    assert sorted(path.name for path in first.path.iterdir()) == ["app.py"]
    (code / "data" / "more.bin").write_text("2")
    (code / "server.log").write_text("3")
    assert store.publish(code).path == first.path
    (code / ".thawdignore").unlink()
    assert store.publish(code).path != first.path
