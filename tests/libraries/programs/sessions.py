"""ONNX Runtime: a convolutional network in its own thread pools, and one with its weights in a file beside it."""

from __future__ import annotations

import os
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # otherwise it keeps a locked database open, and a freeze is refused

import numpy as np
import onnx
import onnxruntime
import scenario
from onnx import TensorProto, helper, numpy_helper

WIDTH = 256


class Sessions:
    """Sessions opened before the freeze."""

    def __init__(self, options: scenario.Options) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = options.threads
        settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        settings.enable_cpu_mem_arena = True
        for pool in ("intra", "inter"):  # idle threads that spin would take processor time from other tests
            settings.add_session_config_entry(f"session.{pool}_op.allow_spinning", "0")
        model = made_model()
        self._inside = self._opened(model.SerializeToString(), settings)
        path = options.folder / "model.onnx"
        onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=1024)
        settings.add_session_config_entry("session.disable_prepacking", "1")
        self._outside = self._opened(str(path), settings)

    def answer(self, number: int) -> Any:
        images = np.random.default_rng(number).random((4, 3, 16, 16), dtype=np.float32)
        inside, outside = (session.run(None, {"x": images})[0] for session in (self._inside, self._outside))
        assert np.allclose(inside, outside, atol=1e-4)
        return {"inside": inside[:, ::25].tolist(), "outside": outside[:, ::25].tolist()}

    def exercise(self) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 2
        for _ in range(3):
            opened = self._opened(made_model().SerializeToString(), settings)
            for count in (1, 64, 3):
                given = np.ones((count, 3, 16, 16), np.float32)
                assert np.allclose(
                    opened.run(None, {"x": given})[0], self._inside.run(None, {"x": given})[0], atol=1e-4
                )

    @staticmethod
    def _opened(model: bytes | str, settings: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def made_model() -> onnx.ModelProto:
    """Return a model with a convolution and two matrix products, with weights from a fixed seed."""
    chance = np.random.default_rng(1)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((chance.standard_normal(shape) / 16).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "filters"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "first"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "second"], ["y"]),
    ]
    made = [weights("filters", 8, 3, 3, 3), weights("first", 8 * 256, WIDTH), weights("second", WIDTH, 100)]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 100])],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


if __name__ == "__main__":
    scenario.main(Sessions)
