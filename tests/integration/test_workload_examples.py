"""The workloads in examples/: each runs as its page says, with a small variant of its model, and checks its results."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NARROW = 1 / 16


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the folder, without generated files."""
    for needed in ("onnx", "onnxruntime", "PIL"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed; the examples need the extra `demo`")
    made = shutil.ignore_patterns(
        ".thawd", "*.onnx", "model", "models", "images", "products", "results", "photos", "prime.json", "__pycache__"
    )
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=made))


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Run an example of the copy as the Makefile does, but without the steps that need the large libraries."""
    environment = {**os.environ, "PYTHONPATH": str(program.parents[1]), "BENCH_LIBRARIES_PYTHON": "/nowhere/python"}
    return subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)


def small(examples: Path, network: str, path: Path, size: int) -> int:
    """Make a narrow variant of a network and return the number of its parameters."""
    path.parent.mkdir(exist_ok=True)
    code = (
        f"import networks, pathlib; print(networks.{network}(pathlib.Path({str(path)!r}), size={size}, width={NARROW}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=examples)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_onnx_http_answers_what_its_model_says(examples: Path) -> None:
    # Given the example with a narrow Inception V3
    small(examples, "inception_v3", examples / "onnx-http/function/inception_v3.onnx", 75)
    # When it runs
    done = run(examples / "onnx-http" / "run.py")
    # Then it was thawed and started cold, and its own check passes
    assert done.returncode == 0, done.stderr
    assert "each prediction is that of the model run directly" in done.stdout
    starts = {words[0]: words[1] for line in done.stdout.splitlines() if (words := line.split())[:1] and "ms" in words}
    assert starts == {"/predict": "thaw", "/predict-cold": "cold"}


def test_an_example_fails_when_a_prediction_is_not_the_models(examples: Path) -> None:
    # Given the example's model, and an answer that gives the wrong class
    example = examples / "onnx-http"
    small(examples, "inception_v3", example / "function/inception_v3.onnx", 75)
    wrong = "[[[{'class': 0, 'probability': 1.0}]]]"
    code = f"import pictures, run; run.check([pictures.picture(7)], {wrong})"
    # When it is checked, then the check reports that
    environment = {**os.environ, "PYTHONPATH": f"{examples}:{example}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "the model run directly says" in done.stderr


def test_stream_writes_objects_and_rows_and_follows_its_bucket_of_models(examples: Path) -> None:
    # Given the example with a narrow ResNet-50 v2, and numpy for the libraries that are downloaded
    models = examples / "stream" / "models"
    small(examples, "resnet50_v2", models / "resnet50v2.onnx", 64)
    with zipfile.ZipFile(models / "libraries.zip", "w") as archive:
        for file in importlib.metadata.files("numpy") or []:
            if ".." not in file.parts and "tests" not in file.parts and file.suffix in (".py", ".so", ".0", ".5"):
                archive.write(str(file.locate()), str(file))
    # When it runs
    done = run(examples / "stream" / "run.py")
    # Then its checks pass: results, rows, replaced labels, libraries from the temporary folder
    assert done.returncode == 0, done.stderr
    assert "20 JSON objects" in done.stdout
    assert "20 rows" in done.stdout
    assert "labels.txt; the next image is a 'sort " in done.stdout
    assert "resnet50v2.onnx; the next image is a 'kind " in done.stdout
    assert "libraries and model downloaded at each init" in done.stdout


@pytest.mark.parametrize(("network", "size"), [("inception_v3", 75), ("resnet50_v2", 64)])
def test_a_network_made_twice_is_the_same(examples: Path, network: str, size: int, tmp_path: Path) -> None:
    first, second = (tmp_path / f"{number}.onnx" for number in range(2))
    assert small(examples, network, first, size) == small(examples, network, second, size)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("network", "parameters"), [("inception_v3", 23_834_568), ("resnet50_v2", 25_549_480)])
def test_the_networks_have_the_sizes_of_the_real_ones(examples: Path, network: str, parameters: int) -> None:
    # Given a network of full width, whose weights are zeros and whose classifier's weights are left out
    code = f"""
import pathlib, types, networks, numpy
networks.np.random.default_rng = lambda seed: types.SimpleNamespace(standard_normal=numpy.zeros)  # drawing takes long
networks.Network.write = lambda net, x, path: path.write_text(str(net.parameters + (net._channels[x] + 1) * 1000))
path = pathlib.Path("parameters"); networks.{network}(path); print(path.read_text())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=examples)
    # Then it has as many parameters as the paper's network
    assert done.stdout.strip() == str(parameters), done.stderr
