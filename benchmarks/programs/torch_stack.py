"""A model of 400 MB for torch: 25 linear layers of 2000 by 2000 floats, one thread.

python torch_stack.py FOLDER    makes the model
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS = 25
WIDTH = 2000
WEIGHTS = "stack.pt"


def load(folder: str) -> Callable[[], bytes]:
    """Load the model with the weights in `folder` and return the inference; it returns the output, float32 (1,
    WIDTH)."""
    import torch

    torch.set_num_threads(1)
    model = _model()
    model.load_state_dict(torch.load(f"{folder}/{WEIGHTS}", weights_only=True))
    model.eval()
    inputs = torch.full((1, WIDTH), 0.5)

    def infer() -> bytes:
        with torch.inference_mode():
            output: bytes = model(inputs).numpy().tobytes()
        return output

    return infer


def make(folder: Path) -> None:
    """Write the weights to `folder`."""
    import torch

    torch.manual_seed(1)
    torch.save(_model().state_dict(), folder / WEIGHTS)


def _model() -> Any:
    from torch import nn

    layers: list[Any] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
