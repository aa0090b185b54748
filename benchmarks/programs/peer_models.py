"""Makes the models of `benchmarks.peers` in a folder, without a download.

    python peer_models.py FOLDER

classifier.onnx: scikit-learn's perceptron, trained on the digits that scikit-learn contains, exported by skl2onnx.
resnet50.onnx: ResNet-50 v2 of `examples/networks.py`, random weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import networks

HIDDEN = 64
OPSETS = {"": 17, "ai.onnx.ml": 3}
"""Old enough for the ONNX Runtimes in both virtual environments: that of thawd and that of the peers."""


def classifier(path: Path) -> None:
    """Train the perceptron and write it to `path`."""
    pixels, labels = load_digits(return_X_y=True)
    trained = MLPClassifier((HIDDEN,), max_iter=300, random_state=0).fit(pixels, labels)
    initial_types = [("pixels", FloatTensorType([None, pixels.shape[1]]))]
    model = to_onnx(trained, initial_types=initial_types, options={"zipmap": False}, target_opset=OPSETS)
    path.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    classifier(FOLDER / "classifier.onnx")
    networks.resnet50_v2(FOLDER / "resnet50.onnx")
