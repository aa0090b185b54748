"""scikit-learn: forests in joblib threads, boosting and clustering in OpenMP threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import scenario
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


class Estimators:
    """Models trained before the freeze."""

    def __init__(self, options: scenario.Options) -> None:
        self._features, self._labels = make_classification(600, 12, random_state=1)
        self._models: dict[str, Any] = {
            "forest": RandomForestClassifier(30, n_jobs=options.threads, random_state=1),
            "boosting": HistGradientBoostingClassifier(max_iter=20, random_state=1),
            "linear": make_pipeline(StandardScaler(), LogisticRegression()),
        }
        for model in self._models.values():
            model.fit(self._features, self._labels)
        self._clusters = KMeans(4, n_init=1, random_state=1).fit(self._features)

    def answer(self, number: int) -> Any:
        given = np.random.default_rng(number).standard_normal((40, 12))
        answers = {name: model.predict_proba(given)[:, 0].tolist() for name, model in self._models.items()}
        return answers | {"clusters": self._clusters.predict(given).tolist()}

    def exercise(self) -> None:
        forest = RandomForestClassifier(20, n_jobs=2, random_state=2).fit(self._features, self._labels)
        assert forest.score(self._features, self._labels) > 0.95
        boosting = HistGradientBoostingClassifier(max_iter=20).fit(self._features, self._labels)
        assert boosting.score(self._features, self._labels) > 0.95
        assert KMeans(4, n_init=2, random_state=2).fit(self._features).inertia_ > 0


if __name__ == "__main__":
    scenario.main(Estimators)
