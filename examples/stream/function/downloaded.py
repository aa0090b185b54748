"""As `stream`, but libraries come from the bucket `models` too: unpacked to /tmp at init, before anything is imported.

That is how functions larger than a deployment package may be were built; every cold start does all of it again.
"""

import io
import os
import sys
import tempfile
import zipfile

import thawd

LIBRARIES = os.path.join(tempfile.gettempdir(), "libraries")
zipfile.ZipFile(io.BytesIO(thawd.bucket("models").read("libraries.zip"))).extractall(LIBRARIES)
sys.path.insert(0, LIBRARIES)

import numpy  # noqa: E402
import stream  # noqa: E402


def handler(event, context):
    return {"libraries": os.path.dirname(os.path.dirname(numpy.__file__)), "found": stream.handler(event, context)}
