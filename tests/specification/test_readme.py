"""The README's function and thawd.toml are run as they stand there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually
from tests.trained import digits

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


def test_the_function_classifies_what_is_put_into_the_bucket(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    example = digits(tmp_path_factory)
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
        eventually(lambda: len(project.rows("labels")) == len(pictures), what="a row for each picture")
        right = sum(row["digit"] == labels[key] for key, row in project.rows("labels").items())
    assert right >= 47
