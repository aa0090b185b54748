"""Makes the two parts: `packages.zip` with NumPy and Pillow of this interpreter, `model.zip` with the model.

Usage: python make_parts.py FOLDER
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

import numpy

PACKAGES = ("numpy", "pillow")
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 70, 210), "grey": (128, 128, 128)}


def main(folder: Path) -> None:
    """Write the parts into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "packages.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in PACKAGES:
            for file in metadata.files(name) or ():
                path = Path(file.locate())
                # Tests and byte code are not needed; a path that leaves the folder is a program in bin/.
                if ".." not in file.parts and not {"tests", "__pycache__"} & set(file.parts) and path.is_file():
                    archive.write(path, str(file))
    with tempfile.TemporaryDirectory() as made, zipfile.ZipFile(folder / "model.zip", "w") as archive:
        model = Path(made, "colours.npz")
        numpy.savez(model, names=list(COLOURS), colours=numpy.array(list(COLOURS.values()), dtype=numpy.float32))
        archive.write(model, model.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
