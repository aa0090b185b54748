"""PaddlePaddle: a network trained before the freeze; dynamic and static graphs and gradients after the thaw."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import repeated
from paddle import nn


class Paddle:
    """A small network, trained a little, and a static graph of it."""

    def __init__(self, options: repeated.Options) -> None:
        paddle.set_device("cpu")
        paddle.core.set_num_threads(options.threads)
        paddle.seed(1)
        self._network = nn.Sequential(
            nn.Conv2D(3, 8, 3), nn.ReLU(), nn.MaxPool2D(2), nn.Flatten(), nn.Linear(8 * 49, 10)
        )
        optimizer = paddle.optimizer.SGD(0.01, parameters=self._network.parameters())
        images = paddle.to_tensor(np.random.default_rng(1).random((16, 3, 16, 16), np.float32))
        for _ in range(3):
            loss = nn.functional.cross_entropy(self._network(images), paddle.arange(16) % 10)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        self._network.eval()
        self._static = paddle.jit.to_static(self._network.forward, full_graph=True)

    def answer(self, number: int) -> Any:
        given = paddle.to_tensor(np.random.default_rng(number).random((4 + number, 3, 16, 16), np.float32))
        weight = paddle.to_tensor(np.full((3, 1), 0.5, np.float32), stop_gradient=False)
        (paddle.matmul(given.mean([2, 3]), weight) ** 2).sum().backward()
        with paddle.no_grad():
            return {
                "dynamic": self._network(given).numpy().tolist(),
                "static": self._static(given).numpy().tolist(),
                "gradient": weight.grad.numpy().tolist(),
            }


if __name__ == "__main__":
    repeated.main(Paddle)
