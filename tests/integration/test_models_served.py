"""Models inside functions: loaded before the snapshot, held in each copy, reported step by step."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.integration.conftest import Project, eventually
from thawd import models

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "multi_model"
FROM_S3 = """
    import fcntl, os
    from thawd import models

    model = models.open("s3://models/a.bin")

    def handler(event, context):
        lock = os.path.join(model.cache.folder, "use", model.sha256)
        with open(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = False
            except OSError:
                held = True
        return [model.origin, open(model.path).read(), held, models.open(model.address).sha256 == model.sha256]
"""


def needs(*libraries: str) -> None:
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed; it is in the extra `demo`")


def test_a_model_opened_from_s3_is_frozen_with_the_function_and_held_in_each_copy(
    project: Project, tmp_path: Path
) -> None:
    project.code(FROM_S3)
    project.config(
        """
        [functions.f]
        handler = "app.handler"
        code = "code"
        [buckets.models]
        """
    )
    (project.root / "code").mkdir()
    (project.root / "app.py").rename(project.root / "code" / "app.py")
    (project.root / "models").mkdir()
    (project.root / "models" / "a.bin").write_text("weights")
    (tmp_path / "home").mkdir()
    with project.up("--aws", environ={"HOME": str(tmp_path / "home")}) as server:
        eventually(lambda: server.function("f")["state"] != "Pending", what="the publication")
        answer, error = server.invoke("f")
        assert (error, answer) == (None, ["downloaded", "weights", True, True])
        assert list(server.function("f")["starts"]) == ["thaw"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two small models of the multi-model example."""
    needs("onnx", "onnxruntime")
    folder = tmp_path_factory.mktemp("store")
    options = ["--count", "2", "--width", "4", "--side", "32"]
    subprocess.run([sys.executable, EXAMPLE / "make_models.py", folder, *options], check=True)
    return folder


@pytest.mark.parametrize("optimise", [True, False])
def test_an_onnx_model_says_the_same_optimised_or_not_and_its_steps_are_told(
    store: Path, tmp_path: Path, optimise: bool
) -> None:
    import numpy as np
    import onnxruntime

    cache, picture = models.Cache(str(tmp_path)), np.arange(64 * 64 * 3, dtype=np.uint8).reshape(1, 64, 64, 3)
    path = store / "model-000.onnx"
    expected = onnxruntime.InferenceSession(path).run(None, {"image": picture})[0]
    for turn in range(2):
        loaded = models.load_onnx(models.open(f"file:{path}", cache=cache), optimise=optimise)
        notes = {step.name: step.note for step in loaded.steps}
        assert np.allclose(loaded.value.run(None, {"image": picture})[0], expected, atol=1e-5)
        assert ("mapped, shared" in notes["session"]) == optimise
        assert notes.get("optimise") == (["made now", "already in the cache"][turn] if optimise else None)
        assert loaded.ms == sum(step.ms for step in loaded.steps) > 0


def test_arrays_of_an_estimator_are_mapped_and_code_of_strangers_is_not_run(tmp_path: Path) -> None:
    needs("joblib", "numpy")
    import joblib
    import numpy as np

    joblib.dump({"weights": np.arange(100_000.0)}, tmp_path / "a.joblib")
    model = models.open(f"file:{tmp_path / 'a.joblib'}", cache=models.Cache(str(tmp_path / "cache")))
    loaded = models.load_joblib(model)
    assert loaded.value["weights"].sum() == np.arange(100_000.0).sum()
    assert "mapped, shared" in loaded.steps[-1].note
    del loaded.value
    model.origin = "downloaded"
    with pytest.raises(models.ModelError, match="would run code"):
        models.load_joblib(model)


def test_the_example_serves_any_model_and_one_that_was_replaced(project: Project, store: Path, tmp_path: Path) -> None:
    import numpy as np
    import onnxruntime

    shutil.copytree(EXAMPLE / "function", project.root / "function")
    shutil.copytree(store, project.root / "store")
    configured = (EXAMPLE / "thawd.toml").read_text().partition("[functions.resident-read]")
    routes = "[routes]" + configured[2].partition("[routes]")[2]
    project.config(configured[0].replace("[server]\n", "") + routes)
    (tmp_path / "home").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (1, 64, 64, 3), np.uint8)
    direct = [
        onnxruntime.InferenceSession(store / f"model-00{n}.onnx").run(None, {"image": pixels})[0][0] for n in range(2)
    ]

    def ask(url: str, name: str) -> dict[str, object]:
        event = {"model": name, "image": base64.b64encode(pixels.tobytes()).decode()}
        with urllib.request.urlopen(f"{url}/predict", json.dumps(event).encode(), timeout=60) as answer:
            found: dict[str, object] = json.loads(answer.read())
            return found

    with project.up(environ={"HOME": str(tmp_path / "home")}) as server:
        first = [ask(server.url, f"model-00{n}") for n in (0, 1, 0)]
        assert [answer["how"] for answer in first] == ["miss", "miss", "hit"]
        for answer, expected in zip(first, [*direct, direct[0]], strict=True):
            assert np.allclose(answer["scores"], expected, atol=1e-4)
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(server.url, "model-999")
        assert caught.value.code == 404
        caught.value.close()
        shutil.copy(store / "model-001.onnx", project.root / "store" / ".new")
        (project.root / "store" / ".new").rename(project.root / "store" / "model-000.onnx")
        eventually(
            lambda: np.allclose(ask(server.url, "model-000")["scores"], direct[1], atol=1e-4),
            what="answers of the model that replaced the other",
        )
