"""Loads torch models: creates the module without weights, then maps the weights and assigns them to it."""

from __future__ import annotations

from typing import Any, Callable, Optional

from thawd.models.faults import ModelError, missing
from thawd.models.loaded import Loaded, Stopwatch, mapped_note
from thawd.models.opening import Model


def load_torch(model: Model, make: Optional[Callable[[], Any]] = None) -> Loaded:
    """Load a module with its weights, in evaluation mode. Without `make`, load only the weights, by name.

    Args:
        model: a file written by ``torch.save(module.state_dict(), ...)``, or a ``.safetensors`` file. From a
            ``torch.save`` file only tensors are loaded (``weights_only``), so no code from the file runs.
        make: creates the module, for example its class. It is called under ``torch.device("meta")``, where tensors have
            a shape but no content, so no time and memory are spent on initial weights. Then the mapped weights become
            the module's weights (``load_state_dict`` with ``assign``).

    Raises:
        ModelError: a library is missing, the weights do not fit the module, or the module has buffers that are not
            stored with its weights.
    """
    watch = Stopwatch(model)
    with watch.step("import torch"):
        try:
            import torch
        except ImportError:
            raise missing("torch", "pip install torch") from None
    with watch.step("weights") as step:
        state = _weights(torch, model)
        step.note = mapped_note(model.path)
    if make is None:
        return Loaded(state, model, watch.steps)
    with watch.step("module") as step:
        with torch.device("meta"):
            module = make()
        try:
            module.load_state_dict(state, assign=True)
        except RuntimeError as error:
            raise ModelError(f"{model.address}: the weights do not fit this module: {error}") from error
        bare = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]
        if bare:
            raise ModelError(
                f"{model.address} does not contain {', '.join(bare[:3])}: PyTorch does not save non-persistent buffers "
                "with the weights. load_torch creates the module without values, so they would stay empty. Call "
                "load_torch without `make`, create the module yourself, and pass the weights to its load_state_dict"
            )
        module.eval()
        step.note = "created without weights; the loaded weights were assigned"
    return Loaded(module, model, watch.steps)


def _weights(torch: Any, model: Model) -> Any:
    if not _is_safetensors(model.path):
        return torch.load(model.path, map_location="cpu", mmap=True, weights_only=True)
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise missing("safetensors", "pip install safetensors") from None
    return load_file(model.path)


def _is_safetensors(path: str) -> bool:
    """Whether the file is in the safetensors format. Such a file begins with a length and a JSON object.

    The file's name cannot tell, because files in the cache have no suffix.
    """
    with open(path, "rb") as file:
        head = file.read(9)
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32
