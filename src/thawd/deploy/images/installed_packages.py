"""Puts the packages of a virtual environment into a layer, so that the same packages make the same layer.

Byte code is left out, because it contains times. Scripts are left out, because they contain the path of the virtual
environment. The list of a package's files (RECORD) has a line for each file: the lines of these files are removed, and
the others are sorted.
"""

from __future__ import annotations

from pathlib import Path

from thawd.deploy.images.host_files import HostFiles
from thawd.oci.layer_writing import NewEntry

# Parts of a virtual environment that are not packages.
_NOT_PACKAGES = ("_virtualenv", "distutils-precedence", "__pycache__")


def site_packages(python: Path) -> Path:
    """Return the folder with the packages of a virtual environment.

    Args:
        python: the virtual environment's interpreter.
    """
    [found] = (python.parent.parent / "lib").glob("python3*/site-packages")
    return found


def packages(python: Path) -> list[Path]:
    """Return the files and folders of the packages of a virtual environment, sorted."""
    return sorted(path for path in site_packages(python).iterdir() if not path.name.startswith(_NOT_PACKAGES))


def add_package(host: HostFiles, path: Path, place: str) -> None:
    """Add a file or folder of a package.

    Args:
        host: the entries.
        path: the file or folder.
        place: its path in the image.
    """
    if not path.is_dir():
        if not path.name.endswith(".pyc"):
            host.add_file(path, place)
        return
    host.add_tree(path, place, without=frozenset({"__pycache__"}))
    record = f"{place}/RECORD"
    if path.name.endswith(".dist-info") and record in host.entries:
        host.entries[record] = NewEntry(0o644, _without_absent(path / "RECORD"))


def _without_absent(record: Path) -> bytes:
    lines = record.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if ".pyc," not in line and not line.lstrip('"').startswith(("../", "/"))]
    return "".join(f"{line}\n" for line in sorted(kept)).encode()
