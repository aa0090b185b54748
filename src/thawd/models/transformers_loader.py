"""Loads transformers models from a folder written by ``save_pretrained``, without using the network."""

from __future__ import annotations

from typing import Any

from thawd.models.faults import ModelError, missing
from thawd.models.loaded import Loaded, Stopwatch, mapped_note
from thawd.models.opening import Model


def load_transformers(model: Model, kind: str = "AutoModel", **options: Any) -> Loaded:
    """Load a transformers model, in evaluation mode.

    Args:
        model: a folder, so its address ends with a slash. Weights in safetensors files are mapped.
        kind: name of a class in `transformers`, for example ``"VisionEncoderDecoderModel"``. It is a name and not the
            class itself, so that the import of `transformers` can be measured as a step.
        options: further arguments of ``from_pretrained``. Weights keep their stored type unless ``dtype`` names
            another.

    Raises:
        ModelError: a library is missing or cannot load the model.
    """
    watch = Stopwatch(model)
    with watch.step("import transformers") as step:
        try:
            import transformers

            loader = getattr(transformers, kind)
        except (ImportError, AttributeError) as error:
            if isinstance(error, AttributeError):
                raise ModelError(f"transformers {transformers.__version__} has no {kind}") from None
            raise missing("transformers", "pip install transformers torch safetensors") from None
        step.note = kind
    with watch.step("weights") as step:
        try:
            value = loader.from_pretrained(model.path, local_files_only=True, **{"dtype": "auto", **options})
        except (OSError, ValueError) as error:
            library = f"transformers {transformers.__version__}"
            raise ModelError(f"{model.address}: {library} cannot load it: {error}") from error
        value.eval()
        step.note = mapped_note(model.path)
    return Loaded(value, model, watch.steps)
