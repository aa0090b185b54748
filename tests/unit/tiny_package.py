"""A package `tiny`, and requirements files that name it."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, version: str = "1.0") -> Path:
    """Make a wheel of the package `tiny`."""
    folder.mkdir(exist_ok=True)
    path = folder / f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def requirements_file(folder: Path, text: str = "tiny\n") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "requirements.txt"
    file.write_text(text)
    return file
