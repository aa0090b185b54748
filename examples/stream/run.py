"""Classifies product images with ResNet-50 v2: bucket to bucket, bucket to table, replaced models, downloads at init.

make example-stream
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import networks
import onnx
import onnx.numpy_helper
import onnxruntime
import pictures
from served import (
    ExampleError,
    Served,
    libraries_python,
    main,
    object_created,
    say,
    serving,
    table,
)

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
MODEL = MODELS / "resnet50v2.onnx"
LABELS = MODELS / "labels.txt"
IMAGES, PRODUCTS, RESULTS = HERE / "images", HERE / "products", HERE / "results"
PRIME = HERE / "prime.json"
PRIMING = "priming.jpeg"
PICTURES = range(200, 220)
WARM = 8
LIBRARIES = ("numpy", "onnxruntime", "flatbuffers", "protobuf", "packaging", "pillow", "sympy", "mpmath", "coloredlogs")
CLOSE = 1e-2


def run() -> None:
    """Run all steps."""
    print("stream: product images through ResNet-50 v2\n", flush=True)
    make()
    empty()
    sent = {f"product-{number}.jpg": pictures.picture(number) for number in PICTURES}
    try:
        with serving(HERE / "thawd.toml") as served:
            say("server", served.url)
            bucket_to_bucket(served, sent)
            bucket_to_table(served, sent)
            replace_labels(served, sent)
            replace_model(served, sent)
            compare(served)
    finally:
        empty()
    side_by_side_of_onednn()


def make(**variant: float) -> None:
    """Make the objects of the bucket `models` unless they exist.

    The labels are always written, because a step replaces them.
    """
    MODELS.mkdir(exist_ok=True)
    if not MODEL.exists():
        parameters = networks.resnet50_v2(MODEL, **variant)
        say("model", f"ResNet-50 v2 made: {parameters:,} parameters, {MODEL.stat().st_size / 2**20:.0f} MiB")
    write_labels("kind")
    # The image of the event that runs before a snapshot is taken. Its name has an ending that invokes no function.
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / PRIMING).write_bytes(pictures.picture(1))
    PRIME.write_text(json.dumps(object_created("images", PRIMING)))
    archive = MODELS / "libraries.zip"
    if not archive.exists():
        pack_libraries(archive)
        say("libraries", f"packed into libraries.zip: {archive.stat().st_size / 2**20:.0f} MiB")


def write_labels(word: str) -> None:
    """Write a label for each class, with a rename."""
    staged = MODELS / ".labels"
    staged.write_text("".join(f"{word} {number}\n" for number in range(networks.CLASSES)))
    staged.replace(LABELS)


def pack_libraries(path: Path) -> None:
    """Pack those of `LIBRARIES` that are installed into one archive."""
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in LIBRARIES:
            try:
                files = importlib.metadata.files(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            for file in files:
                if ".." not in file.parts and file.suffix != ".pyc" and "tests" not in file.parts:
                    archive.write(str(file.locate()), str(file))
    partial.replace(path)


def empty() -> None:
    """Remove the pictures and results of an earlier run."""
    for folder in (IMAGES, PRODUCTS, RESULTS):
        if folder.exists():
            for file in (*folder.glob("product-*.jpg"), *folder.glob("product-*.jpg.json")):
                file.unlink()


def put(folder: Path, sent: dict[str, bytes]) -> None:
    """Store objects. A bucket is a folder; a file with a name that begins with a dot is not an object."""
    for name, data in sent.items():
        staged = folder / f".{name}"
        staged.write_bytes(data)
        staged.replace(folder / name)


def bucket_to_bucket(served: Served, sent: dict[str, bytes]) -> None:
    """Check that each picture gets a JSON object."""
    begun_s = time.perf_counter()
    put(IMAGES, sent)
    served.wait_for(lambda: all((RESULTS / f"{name}.json").exists() for name in sent), "results", ["stream"])
    taken_s = time.perf_counter() - begun_s
    answers = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in sent}
    say("bucket", f"{len(sent)} images into images/, {len(answers)} JSON objects in results/ after {taken_s:.1f} s")
    say("starts", ", ".join(f"{count} by {kind}" for kind, count in served.starts("stream").items()))
    say("found", json.dumps(next(iter(answers.values()))))
    expected = directly(sent)
    for name, answer in answers.items():
        agree(name, answer, expected[name])
    classes = len({answer["ObjectClass"] for answer in answers.values()})
    say("check", f"{len(sent)} images, {classes} classes: each prediction is that of the model run directly")


def bucket_to_table(served: Served, sent: dict[str, bytes]) -> None:
    """Check that each picture gets a row."""
    begun_s = time.perf_counter()
    put(PRODUCTS, sent)
    served.wait_for(lambda: len(served.rows("products")) == len(sent), "rows", ["catalogue"])
    rows = list(served.rows("products").values())
    say("table", f"{len(rows)} rows after {time.perf_counter() - begun_s:.1f} s, such as {json.dumps(rows[0])}")
    labels, expected = LABELS.read_text().splitlines(), directly(sent)
    for row in rows:
        number = labels.index(row["ObjectClass"])
        scores = expected[row["ImageName"]]
        if scores.max() - scores[number] > CLOSE:
            raise ExampleError(f"{row}; the model run directly says {labels[scores.argmax()]}")


def replace_labels(served: Served, sent: dict[str, bytes]) -> None:
    """Replace the labels in the bucket without changing code. Check that the next image gets one of the new labels."""
    write_labels("sort")
    try:
        name, data = next(iter(sent.items()))
        begun_s = time.perf_counter()
        (RESULTS / f"{name}.json").unlink()
        put(IMAGES, {name: data})
        served.wait_for((RESULTS / f"{name}.json").exists, "the result", ["stream"])
        found = json.loads((RESULTS / f"{name}.json").read_text())["ObjectClass"]
        if not found.startswith("sort "):
            raise ExampleError(f"labels were replaced, but the next image got the old label {found!r}")
        say("replaced", f"labels.txt; the next image is a {found!r} after {time.perf_counter() - begun_s:.2f} s")
    finally:
        write_labels("kind")


def replace_model(served: Served, sent: dict[str, bytes]) -> None:
    """Replace the model in the bucket with one whose classes are in reverse order. Check that it classifies the next
    image."""
    first, staged = MODELS / ".first", MODELS / ".other"
    model = onnx.load(MODEL)
    _, weights, biases = next(node for node in model.graph.node if node.op_type == "Gemm").input
    for held in model.graph.initializer:
        if held.name in (weights, biases):
            held.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(held)[::-1].copy(), held.name))
    onnx.save(model, staged)
    first.unlink(missing_ok=True)
    first.hardlink_to(MODEL)
    staged.replace(MODEL)
    try:
        name, data = next(iter(sent.items()))
        (RESULTS / f"{name}.json").unlink()
        begun_s = time.perf_counter()
        put(IMAGES, {name: data})
        served.wait_for((RESULTS / f"{name}.json").exists, "the result", ["stream"])
        taken_s = time.perf_counter() - begun_s
        answer = json.loads((RESULTS / f"{name}.json").read_text())
        agree(name, answer, directly({name: data})[name])
        say("replaced", f"resnet50v2.onnx; the next image is a {answer['ObjectClass']!r} after {taken_s:.2f} s")
    finally:
        first.replace(MODEL)


def compare(served: Served) -> None:
    """Show first and warm answers of the variants."""
    event = object_created("images", f"product-{PICTURES[0]}.jpg")
    told = {
        "accelerated": "ONNX Runtime with its CPU acceleration",
        "plain": "ONNX Runtime without it",
        "downloaded": "libraries and model downloaded at each init",
        "downloaded-thawed": "downloaded once, before the snapshot",
    }
    rows = []
    for function, words in told.items():
        first = served.invoke(function, event)
        warm = [served.invoke(function, event) for _ in range(WARM)]
        warm_ms = statistics.median(one.took_ms for one in warm)
        rows.append((words, first.start, f"{first.took_ms:.0f} ms", f"{warm_ms:.0f} ms"))
        if function.startswith("downloaded") and Path(first.document["libraries"]).name != "libraries":
            raise ExampleError(f"libraries came from {first.document['libraries']}")
        if function.startswith("downloaded") and Path(first.document["models"]).name != "models":
            raise ExampleError(f"the model came from {first.document['models']}")
    table(("variant", "start", "first answer", "warm, p50"), rows)


def directly(sent: dict[str, bytes]) -> dict[str, Any]:
    """Return the scores of the pictures by the model run here, without thawd."""
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    size = session.get_inputs()[0].shape[2]
    return {name: session.run(None, {"pixels": pictures.pixels(data, size)})[0][0] for name, data in sent.items()}


def agree(name: str, answer: dict[str, Any], scores: Any) -> None:
    """Compare an answer with the model run directly.

    Raises:
        ExampleError: it differs.
    """
    number = LABELS.read_text().splitlines().index(answer["ObjectClass"])
    if scores.max() - scores[number] > CLOSE or abs(scores[number] - answer["Score"]) > CLOSE:
        raise ExampleError(f"{name}: {answer}; the model run directly says class {scores.argmax()}, {scores.max()}")


def side_by_side_of_onednn() -> None:
    """Show the times of the same network with torch, with oneDNN and without, if torch is installed."""
    python = libraries_python()
    if not python.exists():
        say("oneDNN", f"left out: {python} is missing; make it with `make example-captions`")
        return
    if subprocess.run(
        [python, "-c", "import torch, onnx, onnxruntime, PIL"], capture_output=True, check=False
    ).returncode:
        say("oneDNN", f"left out: {python} has no torch, onnx, onnxruntime or Pillow")
        return
    rows = []
    for setting, words in (("on", "torch with oneDNN"), ("off", "torch without")):
        command = [str(python), str(HERE / "onednn.py"), str(MODEL), setting]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise ExampleError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr[-2000:]}")
        told = json.loads(done.stdout)
        rows.append((words, *(f"{told[name]:.0f} ms" for name in ("import_ms", "load_ms", "first_ms", "warm_ms"))))
    table(("variant", "import", "load", "first run", "warm, p50"), rows)


if __name__ == "__main__":
    sys.exit(main(run, make))
