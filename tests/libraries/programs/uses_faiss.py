"""faiss: exact, clustered and graph indexes, built before the freeze in OpenMP threads, with vectors added after the
thaw."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import repeated

WIDTH = 32


class Faiss:
    """Three indexes of the same vectors."""

    def __init__(self, options: repeated.Options) -> None:
        faiss.omp_set_num_threads(options.threads)
        self._vectors = np.random.default_rng(1).random((4000, WIDTH), dtype=np.float32)
        exact = faiss.IndexFlatL2(WIDTH)
        self._quantizer = faiss.IndexFlatL2(WIDTH)
        clustered = faiss.IndexIVFPQ(self._quantizer, WIDTH, 16, 8, 6)
        clustered.train(self._vectors)
        clustered.nprobe = 8
        self._indexes = {"exact": exact, "clustered": clustered}
        for index in self._indexes.values():
            index.add(self._vectors)

    def answer(self, number: int) -> Any:
        given = np.random.default_rng(number).random((50, WIDTH), dtype=np.float32)
        answers = {}
        for name, index in self._indexes.items():
            distances, found = index.search(given, 5)
            answers[name] = {"distances": distances.tolist(), "found": found.tolist()}
        grown = faiss.clone_index(self._indexes["exact"])
        grown.add(given)
        answers["grown"] = {"found": grown.search(given, 1)[1].tolist(), "size": grown.ntotal}
        graph = faiss.IndexHNSWFlat(WIDTH, 8)
        graph.add(self._vectors[:300])
        answers["graph"] = {"distances": graph.search(given[:5], 1)[0].shape, "size": graph.ntotal}
        return answers


if __name__ == "__main__":
    repeated.main(Faiss)
