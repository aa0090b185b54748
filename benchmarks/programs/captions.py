"""Image captions with ViT-GPT2 and transformers: the real architecture (239 million parameters, 957 MB) with random
weights.

The model is a vision transformer (base, patches of 16, images of 224) and GPT-2 (base, with cross attention). It
generates at most 16 new tokens by a beam search of four, and a small tokenizer made here turns them into text.
transformers maps the file with the weights. The size of the writes that made this file changes the number of page
faults, so `_rewrite` writes it again.

    python captions.py FOLDER    makes the model
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEAMS = 4
MOST_NEW_TOKENS = 16
IMAGE = 224
PIECE_BYTES = 64 << 20


def load(folder: str) -> Callable[[], bytes]:
    """Load model and tokenizer from `folder` and return the inference, a function that returns the caption of one
    image."""
    import torch
    from transformers import AutoTokenizer, VisionEncoderDecoderModel

    torch.set_num_threads(1)
    model = VisionEncoderDecoderModel.from_pretrained(folder)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ramp = torch.linspace(-1.0, 1.0, IMAGE)
    pixels = torch.stack([ramp.outer(ramp), ramp.expand(IMAGE, IMAGE), ramp.flip(0).expand(IMAGE, IMAGE)])[None]

    def infer() -> bytes:
        with torch.inference_mode():
            tokens = model.generate(pixels, num_beams=BEAMS, max_new_tokens=MOST_NEW_TOKENS)
        caption: str = tokenizer.batch_decode(tokens)[0]
        return caption.encode()

    return infer


def make(folder: Path) -> None:
    """Write the model and the tokenizer to `folder`."""
    import torch
    from transformers import GPT2Config, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    torch.manual_seed(1)
    decoder = GPT2Config(add_cross_attention=True, is_decoder=True)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(image_size=IMAGE), decoder)
    config.decoder_start_token_id = config.pad_token_id = decoder.bos_token_id
    config.eos_token_id = decoder.eos_token_id
    model = VisionEncoderDecoderModel(config)
    model.generation_config.decoder_start_token_id = decoder.bos_token_id
    model.generation_config.pad_token_id = decoder.eos_token_id
    model.save_pretrained(folder)
    _rewrite(folder / "model.safetensors")
    _tokenizer(decoder.vocab_size).save_pretrained(folder)


def _rewrite(file: Path) -> None:
    """Write `file` again in pieces of `PIECE_BYTES`, as tools do that copy or download a file.

    Large writes put large folios (blocks of contiguous pages) into the page cache, and the kernel maps 2 MiB of those
    with one page fault.
    """
    partial = file.with_suffix(".partial")
    with file.open("rb") as old, partial.open("wb", buffering=0) as new:
        while piece := old.read(PIECE_BYTES):
            new.write(piece)
    partial.rename(file)


def _tokenizer(words: int) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"word{number}": number for number in range(words)}
    made = Tokenizer(WordLevel(vocabulary, unk_token="word0"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="word0", eos_token=f"word{words - 1}")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
