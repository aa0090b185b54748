"""numpy and scipy: linear algebra in OpenBLAS threads, Fourier transforms, sorting, sparse solves."""

from __future__ import annotations

from typing import Any

import numpy as np
import scenario
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from threadpoolctl import threadpool_info, threadpool_limits

SIZE = 160


class Arrays:
    """A matrix kept through the freeze, and computations with it."""

    def __init__(self, options: scenario.Options) -> None:
        threadpool_limits(options.threads)
        self._matrix = np.random.default_rng(1).standard_normal((SIZE, SIZE))
        self._sparse = scipy.sparse.csc_matrix(np.diag(np.arange(1.0, SIZE + 1)) + (np.abs(self._matrix) > 3.5))

    def answer(self, number: int) -> Any:
        given = np.random.default_rng(number).standard_normal((SIZE, SIZE))
        solved = np.linalg.solve(self._matrix + 40 * np.eye(SIZE), given)
        return {
            "product": (self._matrix @ given)[::37, ::37].tolist(),
            "solved": solved[::37, ::37].tolist(),
            "singular": scipy.linalg.svdvals(given)[:10].tolist(),
            "spectrum": np.abs(np.fft.rfft(given[0]))[:10].tolist(),
            "order": np.argsort(given[1])[:10].tolist(),
            "sparse": scipy.sparse.linalg.spsolve(self._sparse, given[2])[:10].tolist(),
        }

    def exercise(self) -> None:
        assert threadpool_info()
        for threads in (2, 1, 4):
            with threadpool_limits(threads):
                product = self._matrix @ self._matrix.T
                assert np.allclose(product, product.T)
        grown = np.arange(1000.0)
        for _ in range(12):  # up to 32 MB
            before = len(grown)
            grown.resize(before * 2, refcheck=False)
            assert not grown[before:].any()
            grown[before:] = grown[:before]
        assert grown.sum() == 499500 * 2**12


if __name__ == "__main__":
    scenario.main(Arrays)
