"""Downloads, caches and loads model weights: ``from thawd import models`` in a handler, or in any program.

    model = models.open("s3://models/resnet.onnx?region=eu-west-1")   # a local file, complete and verified
    loaded = models.load_onnx(model)                                  # the session, and the duration of each step

This package runs inside functions, on Python 3.9 and later. It uses only the standard library, except in calls that
need another library, such as ONNX Runtime. If that library is missing, the error names the command that installs it.
"""

from typing import TYPE_CHECKING, Any

__all__ = [
    "Cache",
    "Loaded",
    "Model",
    "ModelChangedError",
    "ModelError",
    "ModelNotFoundError",
    "Residents",
    "Step",
    "load_joblib",
    "load_onnx",
    "load_torch",
    "load_transformers",
    "open",
]

if TYPE_CHECKING:
    from thawd.models.cache import Cache
    from thawd.models.faults import ModelChangedError, ModelError, ModelNotFoundError
    from thawd.models.joblib_loader import load_joblib
    from thawd.models.loaded import Loaded, Step
    from thawd.models.onnx_loader import load_onnx
    from thawd.models.opening import Model, open
    from thawd.models.resident_models import Residents
    from thawd.models.torch_loader import load_torch
    from thawd.models.transformers_loader import load_transformers

_PLACES = {
    "Cache": "cache",
    "Loaded": "loaded",
    "Model": "opening",
    "ModelChangedError": "faults",
    "ModelError": "faults",
    "ModelNotFoundError": "faults",
    "Residents": "resident_models",
    "Step": "loaded",
    "load_joblib": "joblib_loader",
    "load_onnx": "onnx_loader",
    "load_torch": "torch_loader",
    "load_transformers": "transformers_loader",
    "open": "opening",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module("thawd.models." + _PLACES[name]), name)
    raise AttributeError(f"module 'thawd.models' has no attribute {name!r}")
