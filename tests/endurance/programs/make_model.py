"""Writes a perceptron of 64 inputs, two layers of 1,024 and 10 classes: ``python make_model.py FILE``. It has 4.5
MB."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import onnx

WIDTHS = (64, 1024, 1024, 10)
OPSET = 13


def main(path: Path) -> None:
    """Write the model. The weights are made up and the same every time."""
    random = np.random.default_rng(7)
    nodes, weights = [], []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(WIDTHS)):
        matrix = (random.random((inputs, outputs), dtype=np.float32) - 0.5) * (12 / inputs) ** 0.5
        weights.append(onnx.numpy_helper.from_array(matrix, f"weights{number}"))
        taken = "pixels" if number == 0 else f"rectified{number - 1}"
        nodes.append(onnx.helper.make_node("MatMul", [taken, f"weights{number}"], [f"product{number}"]))
        nodes.append(onnx.helper.make_node("Relu", [f"product{number}"], [f"rectified{number}"]))
    nodes[-1] = onnx.helper.make_node("Softmax", [f"product{len(WIDTHS) - 2}"], ["probabilities"])
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "digits",
        [onnx.helper.make_tensor_value_info("pixels", floats, [None, WIDTHS[0]])],
        [onnx.helper.make_tensor_value_info("probabilities", floats, [None, WIDTHS[-1]])],
        weights,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=7)
    path.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
