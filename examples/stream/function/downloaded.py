"""Like `stream`, but init downloads libraries, model and labels from the bucket `models` to /tmp.

It unpacks the libraries before it imports anything from them. On AWS Lambda, functions are built in this way if they
are larger than a deployment package may be. Every cold start repeats the download.
"""

import io
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import thawd

TEMPORARY, BUCKET = Path(tempfile.gettempdir()), thawd.bucket("models")
LIBRARIES, MODELS = str(TEMPORARY / "libraries"), TEMPORARY / "models"
zipfile.ZipFile(io.BytesIO(BUCKET.read("libraries.zip"))).extractall(LIBRARIES)
sys.path.insert(0, LIBRARIES)
MODELS.mkdir(exist_ok=True)
for key in ("resnet50v2.onnx", "labels.txt"):
    (MODELS / key).write_bytes(BUCKET.read(key))
os.environ["MODELS"] = str(MODELS)

import numpy  # noqa: E402
import stream  # noqa: E402


def handler(event, context):
    found = stream.handler(event, context)
    return {"libraries": str(Path(numpy.__file__).parents[1]), "models": stream.classifier.FOLDER, "found": found}
