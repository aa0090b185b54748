"""Classifies pictures with ResNet-50 v2. The model and its labels are objects of the bucket `models`.

If one of them is replaced there, the next picture uses the new one. If the environment variable MODELS names a folder,
both are read from that folder instead. ACCELERATION=off switches off ONNX Runtime's graph optimisations: fused
operators, and memory layouts for the processor's vector instructions.
"""

import io
import os
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

import thawd

Image.preinit()
MODEL, LABELS = "resnet50v2.onnx", "labels.txt"
_LEVEL = onnxruntime.GraphOptimizationLevel
FOLDER = os.environ.get("MODELS", "")
_held = {}


def follow(key, load):
    """Return what `load` returned for the object's file. Call `load` again if the object has changed since."""
    path = str(Path(FOLDER, key)) if FOLDER else thawd.bucket("models").path(key)
    found = Path(path).stat()
    mark = (found.st_ino, found.st_size, found.st_mtime_ns)
    if _held.get(key, (None,))[0] != mark:
        _held[key] = mark, load(path)
    return _held[key][1]


def load_model(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if os.environ.get("ACCELERATION") == "off":
        options.graph_optimization_level = _LEVEL.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options)


def load_labels(path):
    with open(path) as file:
        return file.read().splitlines()


def classify(picture):
    session, labels = follow(MODEL, load_model), follow(LABELS, load_labels)
    size = session.get_inputs()[0].shape[2]
    image = Image.open(io.BytesIO(picture)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1
    [scores] = session.run(["scores"], {"pixels": pixels})[0]
    best = int(scores.argmax())
    return {"ObjectClass": labels[best], "Score": round(float(scores[best]), 4)}


follow(MODEL, load_model), follow(LABELS, load_labels)  # in the init phase, so that the snapshot contains both
