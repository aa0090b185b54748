"""Which libraries a base can hold: after init over it, a function's process is in the same state as without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.conftest import Project

IMPORTS = {
    "boto3": "import boto3",
    "cv2": "import cv2",
    "fastapi": "from fastapi import FastAPI",
    "lightgbm": "import lightgbm",
    "numpy": "import numpy as np",
    "onnxruntime": "import onnxruntime as ort",
    "pandas": "import pandas",
    "pil": "from PIL import Image",
    "polars": "import polars",
    "pyarrow": "import pyarrow",
    "pydantic": "from pydantic import BaseModel",
    "requests": "import requests",
    "sklearn": "from sklearn.ensemble import RandomForestClassifier",
    "tokenizers": "import tokenizers",
    "torch": "import torch",
    "transformers": "from transformers import AutoTokenizer",
    "xgboost": "import xgboost",
}
REFUSED = {"numba": "import numba"}  # it looks for its settings in the current folder


@pytest.mark.timeout(900)
def test_libraries_are_in_bases_and_in_the_same_state(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for name, statement in (IMPORTS | REFUSED).items():
        project.code(
            f"{statement}\nimport sys\ndef handler(event, context):\n    return len(sys.modules)\n", f"{name}/app.py"
        )
    options = "handler = 'app.handler'\nmemory_mb = 3008\ninit_timeout_s = 300\n"
    tables = (f"[functions.{name}]\ncode = '{name}'\n{options}" for name in IMPORTS | REFUSED)
    project.config('bases = "auto"\n' + "".join(tables))
    with project.up(environ={**os.environ}) as running:
        refused = {name: running.function(name)["snapshot"]["base_refused"] for name in IMPORTS | REFUSED}
        assert {name: refused[name] for name in IMPORTS} == dict.fromkeys(IMPORTS)
        assert "they look at the current folder" in refused["numba"]
        for name in IMPORTS | REFUSED:
            assert running.invoke(name, {})[1] is None, name
