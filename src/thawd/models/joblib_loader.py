"""scikit-learn, and whatever else joblib stores: arrays mapped instead of read."""

from __future__ import annotations

from thawd.models.faults import ModelError, missing
from thawd.models.loaded import Loaded, Stopwatch, mapped_note
from thawd.models.opening import Model


def load_joblib(model: Model) -> Loaded:
    """What ``joblib.dump`` stored, without compression: else its arrays cannot be mapped, and are read.

    Mapped arrays are read-only, which predicting does not mind. joblib's format is pickle's: loading runs code that the
    file holds. So the model must be pinned by its SHA-256, or be a file of this machine.

    Raises:
        ModelError: joblib is missing, or the model comes from a store and was opened without ``sha256``.
    """
    if model.origin != "in place" and not model.pinned:
        raise ModelError(f"{model.address}: loading it runs code that it holds; open it with the sha256 that you trust")
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
