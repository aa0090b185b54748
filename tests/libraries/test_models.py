"""Loading models with torch and transformers: the weights are mapped, and results equal those of the library alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from thawd import models


def make() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_weights_are_mapped_into_a_module_made_without_any(tmp_path: Path, form: str) -> None:
    torch.manual_seed(0)
    original, path = make().eval(), tmp_path / "weights"
    if form == "torch":
        torch.save(original.state_dict(), path)
    else:
        safetensors.torch.save_file(original.state_dict(), path)
    picture = torch.randn(1, 512)
    cache = models.Cache(str(tmp_path / "cache"))
    loaded = models.load_torch(models.open(f"file:{path}", cache=cache), make)
    with torch.no_grad():
        assert torch.allclose(loaded.value(picture), original(picture))
    notes = {step.name: step.note for step in loaded.steps}
    assert "mapped, shared" in notes["weights"]
    with pytest.raises(models.ModelError, match="the weights do not fit this module"):
        models.load_torch(models.open(f"file:{path}", cache=cache), lambda: torch.nn.Linear(3, 4))


def test_a_folder_of_transformers_is_loaded_without_the_network(tmp_path: Path) -> None:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32
    )
    torch.manual_seed(0)
    original = transformers.ViTModel(config).eval()
    original.save_pretrained(tmp_path / "vit")
    model = models.open(f"file:{tmp_path / 'vit'}/", cache=models.Cache(str(tmp_path / "cache")))
    loaded = models.load_transformers(model, "ViTModel")
    picture = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(loaded.value(picture)[0], original(picture)[0])
    with pytest.raises(models.ModelError, match="has no NoSuchModel"):
        models.load_transformers(model, "NoSuchModel")
