"""Answers POST /predict, with a picture in the body, with its five likeliest classes according to Inception V3."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

# Code at the top level runs once, in the init phase, before the snapshot. Thawed environments contain what it loaded.
Image.preinit()
options = onnxruntime.SessionOptions()
# An environment runs one invocation at a time, so one thread is enough.
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(str(Path(__file__).with_name("inception_v3.onnx")), options)
SIZE = session.get_inputs()[0].shape[2]
MOST = 5


def handler(event, context):
    body = event.get("body") or ""
    try:
        return {"predictions": predict(base64.b64decode(body) if event.get("isBase64Encoded") else body.encode())}
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return {"statusCode": 400, "body": json.dumps({"message": "the body is no picture that can be read"})}


def predict(picture):
    image = Image.open(io.BytesIO(picture)).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1
    [scores] = session.run(["scores"], {"pixels": pixels})[0]
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    best = np.argsort(-shares, kind="stable")[:MOST]
    return [{"class": int(number), "probability": round(float(shares[number]), 6)} for number in best]
