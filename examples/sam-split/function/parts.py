"""Fetches the parts that do not fit into the deployment package, and makes them importable. Standard library and boto3.

`fetch` may run in several processes at once, and may be killed: a part appears under its name only when it is complete.
"""

import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import boto3

FOLDER = Path("/tmp/parts")  # Lambda's /tmp belongs to one environment


def fetch(bucket, key):
    """Unpack a zip file of the bucket into a folder of `FOLDER`, unless that was done before. Return the folder."""
    folder = FOLDER / Path(key).stem
    if folder.is_dir():
        return folder
    FOLDER.mkdir(exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=FOLDER))
    with tempfile.TemporaryFile(dir=FOLDER) as file:
        boto3.client("s3").download_fileobj(bucket, key, file)
        with zipfile.ZipFile(file) as archive:
            archive.extractall(unfinished)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)
    return folder


sys.path.insert(0, str(fetch(os.environ["PARTS_BUCKET"], "packages.zip")))
MODEL = fetch(os.environ["PARTS_BUCKET"], "model.zip")
