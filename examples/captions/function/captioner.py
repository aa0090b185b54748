"""ViT-GPT2 with transformers: takes a picture's bytes and returns its caption. The init phase loads it once."""

import io
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import tqdm
from PIL import Image
from transformers import AutoTokenizer, VisionEncoderDecoderModel, ViTImageProcessor

BEAMS = 4
MOST_NEW_TOKENS = 16
FOLDER = str(Path(__file__).with_name("model"))

# With another interval, tqdm's progress bars start a thread, and thawd does not fork a process with threads.
tqdm.tqdm.monitor_interval = 0
torch.set_num_threads(1)  # an environment runs one invocation at a time
Image.preinit()
model = VisionEncoderDecoderModel.from_pretrained(FOLDER).eval()
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
processor = ViTImageProcessor.from_pretrained(FOLDER)


def caption(picture):
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    pixels = processor(images=image, return_tensors="pt").pixel_values
    with torch.inference_mode():
        tokens = model.generate(pixels, num_beams=BEAMS, max_new_tokens=MOST_NEW_TOKENS)
    return tokenizer.batch_decode(tokens, skip_special_tokens=True)[0]
