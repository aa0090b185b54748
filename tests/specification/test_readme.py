"""The README's function and thawd.toml are run as they stand there."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    """The first code block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_function_and_its_configuration_are_short() -> None:
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 11
    assert len([line for line in block("toml").splitlines() if line.strip()]) <= 10


def test_the_function_classifies_what_is_put_into_the_bucket(tmp_path: Path) -> None:
    for needed in ("sklearn", "skl2onnx", "onnxruntime", "PIL"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed; the README's function needs the extra `demo`")
    example = tmp_path / "example"
    (example / "function").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "digits" / "train.py", example)
    subprocess.run([sys.executable, example / "train.py"], check=True, capture_output=True)
    project = Project(tmp_path / "project")
    project.root.mkdir()
    shutil.copy(example / "function" / "digits.onnx", project.root)
    project.code(block("python"), "classify.py")
    # This interpreter has the packages already; installing them once more is the example's own test.
    project.config(block("toml").replace('requirements = "requirements.txt"\n', ""))
    labels = json.loads((example / "held-out" / "labels.json").read_text())
    pictures = sorted((example / "held-out").glob("*.png"))[:50]
    with project.up() as running:
        assert running.function("classify")["start"] == "thaw", running.function("classify")
        for picture in pictures:
            shutil.copy(picture, project.root / "uploads")

        def rows() -> list[dict[str, object]]:
            return [json.loads(line) for line in project.command("table", "labels", "--json").stdout.splitlines()]

        eventually(lambda: len(rows()) == len(pictures), what="a row for each picture")
        right = sum(row["digit"] == labels[str(row["_key"])] for row in rows())
    assert right >= 47
