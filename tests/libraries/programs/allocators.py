"""Uses only the C library's malloc, or the one that LD_PRELOAD names."""

from __future__ import annotations

import random
from typing import Any

import memory
import scenario


class Allocators:
    """Objects of all sizes that are kept, and others that are allocated and freed."""

    def __init__(self) -> None:
        chance = random.Random(7)
        self._kept = [chance.randbytes(memory.some_length(chance) // 8) for _ in range(200)]

    def answer(self, number: int) -> Any:
        chance = random.Random(number)
        picked = [self._kept[chance.randrange(len(self._kept))] for _ in range(50)]
        return [sum(block[:: 1 + len(block) // 50]) for block in picked]

    def exercise(self) -> None:
        for seed in range(4):
            memory.churn(memory.CHeap(), seed=seed, steps=1000)


if __name__ == "__main__":
    scenario.main(lambda _options: Allocators())
