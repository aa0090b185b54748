"""OpenVINO: a model compiled before the freeze, and another after the thaw; synchronous and asynchronous requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import repeated
from openvino import opset13 as ops


class OpenVino:
    """A core with its pool of threads, and a compiled model."""

    def __init__(self, options: repeated.Options) -> None:
        # One stream: with two, OpenVINO 2026.4.1 crashes, even without a freeze, when a second thread uses it.
        self._settings = {"INFERENCE_NUM_THREADS": options.threads, "NUM_STREAMS": 1}
        self._core = openvino.Core()
        self._compiled = self._core.compile_model(made_model(0), "CPU", self._settings)

    def answer(self, number: int) -> Any:
        given = np.random.default_rng(number).random((4, 3, 16, 16), dtype=np.float32)
        fresh = self._core.compile_model(made_model(number), "CPU", self._settings)
        requests = [self._compiled.create_infer_request() for _ in range(2)]
        scaled = [given * (at + 1) for at in range(2)]
        for request, tensor in zip(requests, scaled, strict=True):
            request.start_async({0: tensor})
        for request in requests:
            request.wait()
        return {
            "kept": self._compiled(given)[0].tolist(),
            "fresh": fresh(given)[0].tolist(),
            "asynchronous": [request.get_output_tensor().data.tolist() for request in requests],
        }


def made_model(seed: int) -> openvino.Model:
    """Return a model with a convolution and a matrix product."""
    chance = np.random.default_rng(seed)
    given = ops.parameter([-1, 3, 16, 16], np.float32)
    filters = ops.constant((chance.standard_normal((8, 3, 3, 3)) / 8).astype(np.float32))
    convolved = ops.relu(ops.convolution(given, filters, [1, 1], [1, 1], [1, 1], [1, 1]))
    flat = ops.reshape(convolved, ops.constant(np.array([0, -1])), special_zero=True)
    weights = ops.constant((chance.standard_normal((8 * 256, 10)) / 16).astype(np.float32))
    return openvino.Model([ops.matmul(flat, weights, False, False)], [given])


if __name__ == "__main__":
    repeated.main(OpenVino)
