"""XGBoost: trained in OpenMP threads before the freeze, used and trained again after the thaw."""

from __future__ import annotations

import os
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle threads that spin would take processor time from the other copies

import numpy as np
import repeated
import xgboost


class XgBoost:
    """A booster."""

    def __init__(self, options: repeated.Options) -> None:
        self._settings = {"objective": "binary:logistic", "nthread": options.threads, "tree_method": "hist", "seed": 1}
        self._features = np.random.default_rng(1).standard_normal((2000, 12))
        self._booster = self._trained(0)

    def answer(self, number: int) -> Any:
        given = xgboost.DMatrix(np.random.default_rng(number).standard_normal((64, 12)))
        return {
            "kept": self._booster.predict(given).tolist(),
            "trained": self._trained(number).predict(given).tolist(),
            "leaves": self._booster.predict(given, pred_leaf=True).tolist(),
        }

    def _trained(self, number: int) -> xgboost.Booster:
        labels = (self._features[:, number] * self._features[:, number + 1] > 0).astype(int)
        return xgboost.train(self._settings, xgboost.DMatrix(self._features, labels), num_boost_round=8)


if __name__ == "__main__":
    repeated.main(XgBoost)
