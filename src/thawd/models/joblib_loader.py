"""Loads scikit-learn models and other objects that joblib has stored. Their arrays are mapped into memory, not read."""

from __future__ import annotations

from thawd.models.faults import ModelError, missing
from thawd.models.loaded import Loaded, Stopwatch, mapped_note
from thawd.models.opening import Model


def load_joblib(model: Model) -> Loaded:
    """Load an object that ``joblib.dump`` stored. Arrays of a compressed file are read instead of mapped.

    Mapped arrays are read-only, which is enough for predictions. joblib uses pickle, so loading runs code from the
    file. Therefore, a model from a store is loaded only if it was opened with its SHA-256.

    Raises:
        ModelError: joblib is missing, or the model comes from a store and was opened without ``sha256``.
    """
    if model.origin != "in place" and not model.pinned:
        raise ModelError(
            f"{model.address} was opened without sha256. Loading it would run code from the file: check that you trust "
            "the file, and open it with its sha256"
        )
    watch = Stopwatch(model)
    with watch.step("import joblib"):
        try:
            import joblib
        except ImportError:
            raise missing("joblib", "pip install scikit-learn") from None
    with watch.step("load") as step:
        value = joblib.load(model.path, mmap_mode="r")
        step.note = mapped_note(model.path)
    return Loaded(value, model, watch.steps)
