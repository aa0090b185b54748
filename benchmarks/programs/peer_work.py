"""The work of one request in `benchmarks.peers`: 64 numbers become a label.

thawd's function, LitServe and BentoML all import this file, so that they do the same work. It needs only NumPy and ONNX
Runtime.

    classifier: a small perceptron on handwritten digits; all requests of a batch run together
    resnet50:   ResNet-50 v2; the 64 numbers are repeated until they fill a picture, one after another in a batch
    sleep:      waits 20 ms and answers 0
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

SLEEP_S = 0.02
SIDE = 224

Work = Callable[[Sequence[Sequence[float]]], list[int]]


def load(kind: str, models: str, threads: int) -> Work:
    """Load what `kind` needs; the returned function takes the inputs of a batch and returns their labels.

    Args:
        kind: ``classifier``, ``resnet50`` or ``sleep``.
        models: folder of the ONNX files.
        threads: threads of one inference.
    """
    if kind == "sleep":
        return _sleep
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(Path(models) / f"{kind}.onnx"), options, ["CPUExecutionProvider"])

    def classifier(inputs: Sequence[Sequence[float]]) -> list[int]:
        labels: list[int] = session.run(["label"], {"pixels": np.asarray(inputs, np.float32)})[0].tolist()
        return labels

    def resnet50(inputs: Sequence[Sequence[float]]) -> list[int]:
        labels = []
        for numbers in inputs:
            pixels = np.resize(np.asarray(numbers, np.float32) / 8 - 1, (1, 3, SIDE, SIDE))
            labels.append(int(session.run(["scores"], {"pixels": pixels})[0].argmax()))
        return labels

    return {"classifier": classifier, "resnet50": resnet50}[kind]


def _sleep(inputs: Sequence[Sequence[float]]) -> list[int]:
    time.sleep(SLEEP_S)
    return [0] * len(inputs)
