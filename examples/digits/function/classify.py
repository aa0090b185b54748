"""Classifies the digit on a picture: on every PNG that arrives in the bucket, and in the body of POST /classify."""

import base64
import io
import json
from pathlib import Path
from urllib.parse import unquote_plus

import numpy as np
import onnxruntime
from PIL import Image

import thawd

# Code at the top level runs once, in the init phase. Forked environments have everything loaded already.
Image.preinit()  # otherwise each environment loads Pillow's decoders at its first picture
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # an environment runs one invocation at a time, and threads do not survive a fork
session = onnxruntime.InferenceSession(str(Path(__file__).with_name("digits.onnx")), options)


def classify(picture):
    grey = Image.open(io.BytesIO(picture)).convert("L").resize((8, 8), Image.Resampling.BOX)
    pixels = np.asarray(grey, dtype=np.float32).reshape(1, 64) / 255
    [probabilities] = session.run(["probabilities"], {"pixels": pixels})[0]
    return {"digit": int(probabilities.argmax()), "confidence": round(float(probabilities.max()), 4)}


def handler(event, context):
    if "Records" not in event:
        return answer(event)
    labels = {}
    for record in event["Records"]:
        bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
        labels[key] = classify(thawd.bucket(bucket).read(key))
        thawd.table("labels").put(key, labels[key])
    return labels


def answer(request):
    body = request.get("body", "")
    try:
        return classify(base64.b64decode(body) if request["isBase64Encoded"] else body.encode())
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return {"statusCode": 400, "body": json.dumps({"message": "the body is no picture that can be read"})}
