"""torch.compile: C++ built and loaded before the freeze; a new input shape is compiled after the thaw."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle threads that spin would take processor time from the other copies
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more than one starts worker processes that do not exit
# One cache for all copies, so that a new shape is compiled only once, as on an ordinary machine.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())

import repeated
import torch
from torch import nn


class TorchCompile:
    """A network, compiled."""

    def __init__(self, options: repeated.Options) -> None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        self._network = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).eval()
        self._compiled = torch.compile(self._network, dynamic=False)

    def answer(self, number: int) -> Any:
        rows = 16 if number < 2 else 24  # this shape is compiled after the thaw
        given = torch.rand(rows, 64, generator=torch.Generator().manual_seed(number))
        with torch.inference_mode():
            compiled, plain = self._compiled(given), self._network(given)
        assert torch.allclose(compiled, plain, atol=1e-5)
        return compiled.tolist()


if __name__ == "__main__":
    repeated.main(TorchCompile)
