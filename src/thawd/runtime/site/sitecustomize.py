"""Loaded through ``PYTHONPATH`` by every Python that a function starts under ``thawd up --aws``; see `aws_guard`.

Python imports only the first module with the name ``sitecustomize``. This module therefore also loads the one that
Python would have found without it.

Source: Python's documentation of the module `site`.
"""

import os
import sys
from typing import Any


def _load(name: str, file: str) -> Any:
    import importlib.util

    spec: Any = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_next(own_folder: str) -> None:
    from importlib.machinery import PathFinder

    path = [entry for entry in sys.path if os.path.abspath(entry) != own_folder]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.origin:
        _load("sitecustomize", spec.origin)


_folder = os.path.dirname(os.path.abspath(__file__))
_load("_thawd_aws_guard", os.path.join(os.path.dirname(_folder), "aws_guard.py")).install()
_load_next(_folder)
