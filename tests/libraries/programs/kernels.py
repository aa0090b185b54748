"""numba: machine code compiled before the freeze, more compiled after the thaw, and numba's parallel threads."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import scenario


@numba.njit
def collatz(start: int) -> int:
    """Return the number of steps to 1."""
    steps = 0
    while start != 1:
        start = start // 2 if start % 2 == 0 else 3 * start + 1
        steps += 1
    return steps


@numba.njit(parallel=True)
def norms(rows: np.ndarray) -> np.ndarray:
    """Return the length of each row."""
    found = np.zeros(len(rows))
    for at in numba.prange(len(rows)):
        found[at] = np.sqrt((rows[at] ** 2).sum())
    return found


class Kernels:
    """Functions compiled before the freeze."""

    def __init__(self, options: scenario.Options) -> None:
        numba.set_num_threads(min(options.threads, numba.config.NUMBA_NUM_THREADS))

    def answer(self, number: int) -> Any:
        rows = np.random.default_rng(number).standard_normal((500, 40))
        return {"steps": [collatz(start) for start in range(1, 50 + number)], "norms": norms(rows)[::20].tolist()}

    def exercise(self) -> None:
        compiled = numba.njit(lambda x: x * x + 1)
        assert [compiled(2), compiled(1.5)] == [5, 3.25]
        added = numba.vectorize(["f8(f8, f8)"], target="parallel")(lambda a, b: a + 2 * b)
        assert (added(np.ones(1000), np.arange(1000.0)) == 1 + 2 * np.arange(1000)).all()


if __name__ == "__main__":
    scenario.main(Kernels)
