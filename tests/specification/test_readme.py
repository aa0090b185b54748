"""Runs the README's functions and their thawd.toml unchanged."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests import consoles
from tests.integration.conftest import Project, eventually
from tests.trained import digits

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def written(name: str) -> str:
    """Return a file that the README shows."""
    [text] = [step.text for step in consoles.steps(README) if isinstance(step, consoles.File) and step.name == name]
    return text


def needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed; the README's functions need the extra `demo`")


@pytest.mark.parametrize("name", ["predict.py", "classify.py", "thawd.toml"])
def test_a_function_and_its_configuration_have_ten_lines_or_so(name: str) -> None:
    assert len([line for line in written(name).splitlines() if line.strip()]) <= 11


def test_the_front_page_is_short() -> None:
    assert len(README.read_text().split()) <= 900


def test_the_figures_are_those_of_the_performance_page() -> None:
    performance = (ROOT / "docs" / "performance.md").read_text()
    section = README.read_text().partition("## Five figures")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    for row in rows:
        for figure in re.findall(r"[\d,.]*\d", row.split("|")[2]):
            assert figure in performance, figure


def test_the_function_behind_http_predicts(tmp_path: Path) -> None:
    needs("sklearn", "joblib")
    project = Project(tmp_path)
    tutorial = consoles.steps(ROOT / "docs" / "tutorials" / "http-model.md")
    train = next(step for step in tutorial if isinstance(step, consoles.File))
    project.code(train.text, train.name)
    subprocess.run([sys.executable, train.name], cwd=project.root, check=True, capture_output=True)
    project.code(written("predict.py"), "predict.py")
    with project.run("predict.py") as running:
        # A request waits for the publication, but on a busy machine an import may take longer than it waits.
        eventually(lambda: running.function("predict")["state"] == "Active", what="the publication")
        request = urllib.request.Request(
            running.url, data=b"[5.1, 3.5, 1.4, 0.2]", headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.loads(answer.read()) == {"species": "setosa"}


def test_the_function_behind_a_bucket_classifies_what_is_put_into_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    example = digits(tmp_path_factory)
    project = Project(tmp_path / "project")
    project.root.mkdir()
    shutil.copy(example / "function" / "digits.onnx", project.root)
    project.code(written("classify.py"), "classify.py")
    # This interpreter has the packages already. The example's own test installs them.
    project.config(written("thawd.toml").replace('requirements = "requirements.txt"\n', ""))
    labels = json.loads((example / "held-out" / "labels.json").read_text())
    pictures = sorted((example / "held-out").glob("*.png"))[:50]
    with project.up() as running:
        assert running.function("classify")["start"] == "thaw", running.function("classify")
        for picture in pictures:
            shutil.copy(picture, project.root / "uploads")
        eventually(lambda: len(project.rows("labels")) == len(pictures), what="a row for each picture")
        right = sum(row["digit"] == labels[key] for key, row in project.rows("labels").items())
    assert right >= 47
