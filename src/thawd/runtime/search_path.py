"""Sets up ``sys.path`` before the handler is imported, in the order that Lambda's Python runtime uses.

The code's folder comes first, then the layers' ``python/lib/python3.x/site-packages``, then their ``python``, then the
interpreter's own folders. If two layers have the same file, the file of the later layer is found. ``.pth`` files in
these folders are read: each line adds a folder, or is an import statement that is executed.

Source: AWS Lambda developer guide, "Runtime dependency search path in Python", "Working with layers for Python Lambda
functions"; Python documentation, "site".
"""

import os
import site
import sys
from typing import List

WORKING_FOLDER = "THAWD_WORKING_FOLDER"
"""Environment variable of a container image's processes: the working folder, which need not be the code's folder."""
LAYERS = "THAWD_LAYERS"
"""Environment variable with the folders of the layers; the folder whose files are found first comes first."""


def set_up(task_root: str) -> None:
    """Add the code's folder and the layers to ``sys.path``, and read their ``.pth`` files.

    Args:
        task_root: the folder of the function's code.
    """
    folders = [task_root, *_in_layers(), *_of_runtime()]
    sys.path[:0] = folders
    for folder in folders:
        if os.path.isdir(folder):
            site.addsitedir(folder)


def _of_runtime() -> List[str]:
    """In a container image: the folder of the image's own runtime client, where Lambda's images have AWS's SDK."""
    folder = os.environ.get("LAMBDA_RUNTIME_DIR", "")
    return [folder] if WORKING_FOLDER in os.environ and os.path.isdir(folder) else []


def _in_layers() -> List[str]:
    layers = [layer for layer in os.environ.get(LAYERS, "").split(os.pathsep) if layer]
    packages = "lib/python%d.%d/site-packages" % sys.version_info[:2]
    found = [os.path.join(layer, "python", packages) for layer in layers]
    found += [os.path.join(layer, "python") for layer in layers]
    return [folder for folder in found if os.path.isdir(folder)]
