"""Pictures for the examples. Each is made from its number, so it is the same every time."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

EDGE = 320


def picture(number: int) -> bytes:
    """Make a JPEG file: a field of colours, coarse or fine depending on its number."""
    random = np.random.default_rng(number)
    coarse = int(random.integers(2, 24))
    colours = random.integers(0, 256, (coarse, coarse, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((EDGE, EDGE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def pixels(data: bytes, size: int) -> np.ndarray:
    """Return the picture as input for a network: float32, 1x3xSIZExSIZE, from -1 to 1."""
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1
