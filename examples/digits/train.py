"""Trains the digit classifier of this example: handwritten digits become ``function/digits.onnx``.

The data set is part of scikit-learn: 1,797 pictures of 8x8 pixels in 17 shades. 360 of them are held out: they are not
used to train the model or to choose it, only to score the answers of the running function. They are written as PNG
files, enlarged eight times so that people can look at them. Their labels go to a file that the function never sees.

The model is a logistic regression on the products of 30 principal components. Model and parameters were chosen by
five-fold cross-validation on the 1,437 training pictures. In it, the model gets 98.8 % right, as many as a support
vector machine, and its probabilities need no calibration. A perceptron of 256 units got 98.0 %.

    python examples/digits/train.py
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

HERE = Path(__file__).resolve().parent
MODEL = HERE / "function" / "digits.onnx"
HELD_OUT = HERE / "held-out"
LABELS = HELD_OUT / "labels.json"

HELD_OUT_COUNT = 360
SEED = 0
ENLARGE = 8
# Old enough for every ONNX Runtime since 1.6, and so for Python 3.9.
OPSETS = {"": 13, "ai.onnx.ml": 1}


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures and their labels.

    Attributes:
        images: (n, 8, 8), uint8, 0 is black paper and 255 white ink.
        labels: (n,), int, 0-9.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]


def load() -> tuple[Digits, Digits]:
    """Return the training pictures and the held-out ones.

    Each call returns the same two sets, and each digit is about equally frequent in both.
    """
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    split = train_test_split(images, data.target, test_size=HELD_OUT_COUNT, stratify=data.target, random_state=SEED)
    return Digits(split[0], split[2]), Digits(split[1], split[3])


def pixels(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the model's input: (n, 64), float32, 0 to 1. ``function/classify.py`` computes the same input."""
    return images.reshape(-1, 64).astype(np.float32) / np.float32(255)


def fit(digits: Digits) -> bytes:
    """Return the trained model as ONNX: input ``pixels`` (n, 64), outputs ``label``, ``probabilities`` (n, 10)."""
    model = make_pipeline(PCA(30, svd_solver="full"), PolynomialFeatures(2), LogisticRegression(C=3, max_iter=300))
    model.fit(pixels(digits.images), digits.labels)
    pixels_type = FloatTensorType([None, 64])
    onnx = to_onnx(
        model,
        initial_types=[("pixels", pixels_type)],
        options={"zipmap": False},
        target_opset=OPSETS,
        name="digits",
    )
    # The converter writes these entries in the order of a set, which differs in each process. Sorted entries make the
    # file the same each time.
    onnx.opset_import.sort(key=lambda opset: opset.domain)
    return bytes(onnx.SerializeToString())


def write_held_out(digits: Digits) -> None:
    """Write ``held-out/digit-0001.png`` and so on, and ``held-out/labels.json``, which maps file names to digits."""
    HELD_OUT.mkdir(exist_ok=True)
    labels = {}
    for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True), start=1):
        name = f"digit-{number:04}.png"
        Image.fromarray(image.repeat(ENLARGE, axis=0).repeat(ENLARGE, axis=1)).save(HELD_OUT / name)
        labels[name] = int(label)
    LABELS.write_text(json.dumps(labels, indent=1) + "\n")


def main() -> int:
    """Train, export, write the held-out pictures."""
    begun = time.monotonic()
    training, held_out = load()
    write_held_out(held_out)
    model = fit(training)
    # The model is written last and by a rename: if it exists, the demo knows that everything else exists too.
    unfinished = MODEL.with_suffix(".unfinished")
    unfinished.write_bytes(model)
    unfinished.replace(MODEL)
    taken_s = time.monotonic() - begun
    print(
        f"trained on {len(training.labels)} digits in {taken_s:.1f} s; "
        f"{len(held_out.labels)} held out; model of {len(model) / 1024:.0f} KiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
