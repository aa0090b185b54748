"""Serves Inception V3 as ONNX behind ``POST /predict``, measures first and warm answers, and checks each answer.

make example-onnx-http
"""

from __future__ import annotations

import base64
import json
import statistics
import sys
from pathlib import Path

import networks
import numpy as np
import onnxruntime
import pictures
from served import ExampleError, Served, main, say, serving, table

HERE = Path(__file__).resolve().parent
MODEL = HERE / "function" / "inception_v3.onnx"
PRIME = HERE / "prime.json"
PICTURE = HERE / "picture.jpg"
PICTURES = range(100, 120)
CLOSE = 1e-4


def run() -> None:
    """Run all steps."""
    print("onnx-http: Inception V3 as ONNX behind POST /predict\n", flush=True)
    make()
    with serving(HERE / "thawd.toml") as served:
        say("server", f"{served.url}, function frozen after one priming request")
        sent = [pictures.picture(number) for number in PICTURES]
        rows, answers = [], []
        for route, function in (("/predict", "predict"), ("/predict-cold", "predict-cold")):
            replies = [served.post(route, picture, "image/jpeg") for picture in sent]
            warm_ms = statistics.median(reply.took_ms for reply in replies[1:])
            first_ms = replies[0].took_ms
            times = (f"{ms:.0f} ms" for ms in (first_ms, warm_ms, first_ms - warm_ms))
            rows.append((route, start_of(served, function), *times))
            answers.append([reply.document["predictions"] for reply in replies])
        table(("route", "start", "first answer", "warm, p50", "added by the start"), rows)
        for number, answer in list(zip(PICTURES, answers[0], strict=True))[:3]:
            best = answer[0]
            say("predicted", f"picture {number}: class {best['class']} with {best['probability']:.4f}")
    check(sent, answers)


def make(**variant: float) -> None:
    """Make a picture to send by hand and the priming event. Make the model, too, unless it exists."""
    if not MODEL.exists():
        parameters = networks.inception_v3(MODEL, **variant)
        say("model", f"Inception V3 made: {parameters:,} parameters, {MODEL.stat().st_size / 2**20:.0f} MiB")
    PICTURE.write_bytes(pictures.picture(PICTURES[0]))
    body = base64.b64encode(pictures.picture(0)).decode()
    PRIME.write_text(json.dumps({"version": "2.0", "routeKey": "POST /predict", "body": body, "isBase64Encoded": True}))


def start_of(served: Served, function: str) -> str:
    """Return how the function's only environment was started."""
    [kind] = served.starts(function)
    return kind


def check(sent: list[bytes], answers: list[list[list[dict[str, float]]]]) -> None:
    """Compare the answers of each route with the model run here, without thawd.

    Raises:
        ExampleError: a prediction differs.
    """
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    size = session.get_inputs()[0].shape[2]
    classes = set()
    for index, picture in enumerate(sent):
        [scores] = session.run(None, {"pixels": pictures.pixels(picture, size)})[0]
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        classes.add(int(shares.argmax()))
        for answer in (route[index] for route in answers):
            told = {one["class"]: one["probability"] for one in answer}
            if shares.max() - shares[answer[0]["class"]] > CLOSE or any(
                abs(shares[c] - p) > CLOSE for c, p in told.items()
            ):
                raise ExampleError(f"picture {index}: {answer}; the model run directly says class {shares.argmax()}")
    say("check", f"{len(sent)} pictures, {len(classes)} classes: each prediction is that of the model run directly")


if __name__ == "__main__":
    sys.exit(main(run, make))
