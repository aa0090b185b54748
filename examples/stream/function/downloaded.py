"""As `stream`, but libraries, model and labels are downloaded from the bucket `models` to /tmp at init, the libraries
unpacked before anything of them is imported.

That is how functions larger than a deployment package may be were built; every cold start does all of it again.
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
