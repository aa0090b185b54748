"""Addresses of models: ``s3://bucket/key``, ``file:path``, ``package:path``."""

from __future__ import annotations

import os
from typing import Dict, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from thawd.models.faults import ModelError

_PARAMETERS = ("region", "endpoint", "path_style", "anonymous")


class Address(NamedTuple):
    """The location of a model.

    Attributes:
        text: the address as written.
        bucket: S3 bucket; empty if the model is a file on this machine.
        key: the object's key; it ends with a slash if the model is a folder of objects.
        parameters: parameters of the URL: region, endpoint, path_style, anonymous.
        path: absolute path of the file or folder; empty for S3.
    """

    text: str
    bucket: str
    key: str
    parameters: Dict[str, str]
    path: str


def parse(text: str) -> Address:
    """Parse an address.

    A ``file:`` path is relative to the working folder. A ``package:`` path is relative to the function's code
    (``LAMBDA_TASK_ROOT``), or outside a function to the working folder, and must not lead outside that folder.

    Raises:
        ModelError: `text` is not a valid address; the message shows valid ones.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "s3" and rest.startswith("//"):
        return _s3(text)
    if scheme == "file" and rest:
        path = unquote(urlsplit(text).path) if rest.startswith("//") else rest
        return Address(text, "", "", {}, os.path.abspath(path))
    if scheme == "package" and rest:
        root = os.path.abspath(os.environ.get("LAMBDA_TASK_ROOT") or ".")
        path = os.path.normpath(os.path.join(root, rest))
        if not path.startswith(root + os.sep):
            raise ModelError(f"the address {text!r} leads outside the code in {root}")
        return Address(text, "", "", {}, path)
    raise ModelError(f"{text!r} is not the address of a model; allowed: s3://bucket/key, file:path, package:path")


def _s3(text: str) -> Address:
    parts = urlsplit(text)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(parameters) - set(_PARAMETERS))
    if unknown:
        raise ModelError(f"{text!r} has the unknown parameter {unknown[0]!r}; allowed: {', '.join(_PARAMETERS)}")
    key = unquote(parts.path)[1:]
    if not parts.netloc or not key or "//" in key or any(part in (".", "..") for part in key.split("/")):
        raise ModelError(f"{text!r} does not name an object; write it like s3://bucket/models/resnet.onnx")
    return Address(text, parts.netloc, key, parameters, "")
