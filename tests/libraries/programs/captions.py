"""transformers: a small ViT-GPT2 with weights mapped from a safetensors file, and beam search."""

from __future__ import annotations

from typing import Any

import scenario
import torch
from transformers import GPT2Config, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

VOCABULARY = 200
BEAMS = 4


class Captions:
    """A model made from a fixed seed, saved, and loaded as users do."""

    def __init__(self, options: scenario.Options) -> None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        size = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128}
        encoder = ViTConfig(image_size=64, patch_size=16, initializer_range=0.5, **size)
        special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
        decoder = GPT2Config(vocab_size=VOCABULARY, initializer_range=0.5, **sizes, **special)
        configuration = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        folder = options.folder / "vit-gpt2"
        VisionEncoderDecoderModel(configuration).save_pretrained(folder)
        self._model = VisionEncoderDecoderModel.from_pretrained(folder, local_files_only=True).eval()

    def answer(self, number: int) -> Any:
        image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(number))
        found = self._model.generate(
            image,
            num_beams=BEAMS,
            num_return_sequences=BEAMS,
            max_new_tokens=16,
            do_sample=False,
            decoder_start_token_id=1,
            pad_token_id=0,
            eos_token_id=2,
            output_scores=True,
            return_dict_in_generate=True,
        )
        return {"tokens": found.sequences.tolist(), "scores": found.sequences_scores.tolist()}

    def exercise(self) -> None:
        captions = [self.answer(number)["tokens"] for number in range(4)]
        assert len({str(tokens) for tokens in captions}) > 1
        image = torch.rand(1, 3, 64, 64)
        labels = torch.randint(3, VOCABULARY, (1, 8))
        self._model.config.decoder_start_token_id, self._model.config.pad_token_id = 1, 0
        self._model(pixel_values=image, labels=labels).loss.backward()
        gradients = [weight.grad for weight in self._model.parameters() if weight.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        self._model.zero_grad()


if __name__ == "__main__":
    scenario.main(Captions)
