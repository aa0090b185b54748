"""Makes `function/model`: ViT-GPT2 in its real architecture with random weights, and a small tokenizer, offline.

    python make.py FOLDER [tiny]

The model has 239 million parameters and 957 MB. With ``tiny``, the program makes a small model with the same parts, for
tests. Run the program with an interpreter that has transformers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    GPT2Config,
    PreTrainedTokenizerFast,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTImageProcessor,
)

TINY_VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TINY_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 500, "bos_token_id": 499, "eos_token_id": 499}
# A decoder with random weights would write the same caption for every image. So the weights of its cross attention,
# with which it sees the image, are multiplied by the root of this number. Then different images get different captions.
LOUDNESS = 30.0


def make(folder: Path, *, is_tiny: bool) -> int:
    """Write model, tokenizer and image processor to `folder` and return the number of parameters."""
    torch.manual_seed(1)
    decoder = GPT2Config(add_cross_attention=True, is_decoder=True, **(TINY_GPT2 if is_tiny else {}))
    encoder = ViTConfig(image_size=224, **(TINY_VIT if is_tiny else {}))
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = config.pad_token_id = decoder.bos_token_id
    config.eos_token_id = decoder.eos_token_id
    model = VisionEncoderDecoderModel(config)
    for name, weights in model.named_parameters():
        if "crossattention" in name and name.endswith("weight"):
            weights.data *= LOUDNESS**0.5
    model.generation_config.decoder_start_token_id = decoder.bos_token_id
    model.generation_config.pad_token_id = decoder.eos_token_id
    model.save_pretrained(folder)
    tokenizer(decoder.vocab_size).save_pretrained(folder)
    ViTImageProcessor(size={"height": 224, "width": 224}).save_pretrained(folder)
    return sum(weights.numel() for weights in model.parameters())


def tokenizer(words: int) -> Any:
    """Return a tokenizer with one word for each token."""
    vocabulary = {f"word{number}": number for number in range(words)}
    made = Tokenizer(WordLevel(vocabulary, unk_token="word0"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="word0", eos_token=f"word{words - 1}")


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), is_tiny="tiny" in sys.argv[2:]))
