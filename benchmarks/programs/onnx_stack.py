"""A model of 1 GiB for ONNX Runtime: 16 products with a matrix of 4096 by 4096 floats, one thread.

An inference reads every weight once. ONNX Runtime keeps a rearranged copy of all weights in anonymous memory, so no
part of the process's memory maps the model's file. That is the hardest case for a snapshot.

    python onnx_stack.py FOLDER    makes the model
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

LAYERS = 16
WIDTH = 4096
MODEL = "stack.onnx"
# Scale of the uniform random weights. It keeps the values of all layers at about the same size; with another scale they
# would grow or vanish from layer to layer.
SPREAD = 1.4 * (12 / WIDTH) ** 0.5


def load(folder: str) -> Callable[[], bytes]:
    """Return an inference on the model in `folder`; it returns the model's output, float32 (1, WIDTH)."""
    # ONNX Runtime's telemetry would open an SQLite file and start a thread.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(f"{folder}/{MODEL}", options, providers=["CPUExecutionProvider"])
    feed = {"x0": numpy.full((1, WIDTH), 0.5, numpy.float32)}

    def infer() -> bytes:
        output: bytes = session.run(None, feed)[0].tobytes()
        return output

    return infer


def make(folder: Path) -> None:
    """Write the model to `folder`."""
    import numpy
    import onnx
    from onnx import helper

    random = numpy.random.default_rng(1)
    nodes, shape = [], [1, WIDTH]
    for layer in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"x{layer + 1}"]))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x0", f"x{LAYERS}")]
    graph = helper.make_graph(nodes, "stack", [ends[0]], [ends[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with (folder / MODEL).open("wb") as file:
        file.write(model.SerializeToString())
        # The weights are made and written one by one. Protobuf merges messages that follow each other in a file into
        # one message (protobuf's encoding, "Last One Wins").
        for layer in range(LAYERS):
            weights = (random.random((WIDTH, WIDTH), dtype=numpy.float32) - 0.5) * numpy.float32(SPREAD)
            tensor = onnx.TensorProto(
                name=f"w{layer}", data_type=onnx.TensorProto.FLOAT, dims=weights.shape, raw_data=weights.tobytes()
            )
            piece = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor]))
            file.write(piece.SerializeToString())


if __name__ == "__main__":
    make(Path(sys.argv[1]))
