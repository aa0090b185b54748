"""CatBoost: trained before the freeze in its own threads, used and trained again after the thaw."""

from __future__ import annotations

from typing import Any

import catboost
import numpy as np
import repeated


class CatBoost:
    """A classifier with a column of categories."""

    def __init__(self, options: repeated.Options) -> None:
        self._threads = options.threads
        chance = np.random.default_rng(1)
        self._features = [
            [*row, f"kind {kind}"]
            for row, kind in zip(chance.random((400, 6)).tolist(), chance.integers(0, 4, 400), strict=True)
        ]
        self._model = self._trained(0)

    def answer(self, number: int) -> Any:
        chance = np.random.default_rng(number)
        given = [[*row, f"kind {at % 4}"] for at, row in enumerate(chance.random((40, 6)).tolist())]
        return {
            "kept": self._model.predict_proba(given).tolist(),
            "trained": self._trained(number).predict_proba(given).tolist(),
        }

    def _trained(self, number: int) -> catboost.CatBoostClassifier:
        labels = [int(row[number] > row[number + 1]) for row in self._features]
        model = catboost.CatBoostClassifier(
            iterations=10, depth=3, random_seed=1, thread_count=self._threads, verbose=False, allow_writing_files=False
        )
        return model.fit(self._features, labels, cat_features=[6])


if __name__ == "__main__":
    repeated.main(CatBoost)
