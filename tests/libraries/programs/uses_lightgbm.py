"""LightGBM: trained in OpenMP threads before the freeze, used and trained again after the thaw."""

from __future__ import annotations

import os
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle threads that spin would take processor time from the other copies

import lightgbm
import numpy as np
import repeated


class LightGbm:
    """A booster."""

    def __init__(self, options: repeated.Options) -> None:
        self._settings = {
            "objective": "binary",
            "num_threads": options.threads,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }
        chance = np.random.default_rng(1)
        self._features = chance.standard_normal((2000, 12))
        self._booster = self._trained(0)

    def answer(self, number: int) -> Any:
        given = np.random.default_rng(number).standard_normal((64, 12))
        return {
            "kept": self._booster.predict(given).tolist(),
            "trained": self._trained(number).predict(given).tolist(),
        }

    def _trained(self, number: int) -> Any:
        labels = (self._features[:, number] * self._features[:, number + 1] > 0).astype(int)
        data = lightgbm.Dataset(self._features, labels)
        return lightgbm.train(self._settings, data, num_boost_round=8)


if __name__ == "__main__":
    repeated.main(LightGbm)
