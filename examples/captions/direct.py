"""Runs the caption model without thawd, and prints the captions of the pictures with the given numbers as JSON.

python direct.py FOLDER NUMBER...
"""

from __future__ import annotations

import io
import json
import sys

import pictures
import torch
from PIL import Image
from transformers import AutoTokenizer, VisionEncoderDecoderModel, ViTImageProcessor


def main(folder: str, *numbers: str) -> None:
    """Load the model from `folder`, and print the caption of each picture."""
    torch.set_num_threads(1)
    model = VisionEncoderDecoderModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = ViTImageProcessor.from_pretrained(folder)
    captions = []
    for number in numbers:
        image = Image.open(io.BytesIO(pictures.picture(int(number)))).convert("RGB")
        pixels = processor(images=image, return_tensors="pt").pixel_values
        with torch.inference_mode():
            tokens = model.generate(pixels, num_beams=4, max_new_tokens=16)
        captions.append(tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])
    print(json.dumps(captions))


if __name__ == "__main__":
    main(*sys.argv[1:])
