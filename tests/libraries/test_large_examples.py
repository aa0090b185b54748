"""The captions example with a small ViT-GPT2, and the stream example's torch program with and without oneDNN."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MADE = shutil.ignore_patterns(".thawd", "*.onnx", "model", "models", "photos", "prime.json", "__pycache__")


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program from a copy of the examples."""
    environment = {**os.environ, "PYTHONPATH": str(program.parents[1]), "BENCH_LIBRARIES_PYTHON": sys.executable}
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, env=environment)


def test_captions_are_the_models_by_own_stores_and_by_boto3(tmp_path: Path) -> None:
    # Given the example with a small ViT-GPT2
    example = Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=MADE)) / "captions"
    made = run(example / "make.py", str(example / "function" / "model"), "tiny")
    assert made.returncode == 0, made.stderr
    # When it runs
    done = run(example / "run.py")
    # Then both variants agree with the model, and environments were thawed
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("each is that of the model run directly") == 2
    assert "by thaw" in done.stdout


def test_torch_with_onednn_and_without_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    # Given a narrow ResNet-50 v2
    examples = Path(shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=MADE))
    model = tmp_path / "resnet.onnx"
    code = f"import networks, pathlib; networks.resnet50_v2(pathlib.Path({str(model)!r}), size=64, width=1 / 16)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=examples)
    for setting in ("on", "off"):
        # When torch runs it and compares its scores with those of ONNX Runtime
        done = run(examples / "stream" / "onednn.py", str(model), setting)
        # Then it succeeds and prints the times of its steps
        assert done.returncode == 0, done.stderr
        assert all(value > 0 for value in json.loads(done.stdout).values())
