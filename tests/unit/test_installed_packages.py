"""Packages of a virtual environment become the same entries of a layer, wherever they were installed."""

from __future__ import annotations

from pathlib import Path

from thawd.deploy.images.host_files import HostFiles
from thawd.deploy.images.installed_packages import add_package, packages
from thawd.oci.layer_writing import content_digest


def _installed(folder: Path, *, order: int) -> Path:
    """A virtual environment with one package, whose script and byte code name the environment's path."""
    found = folder / "lib/python3.12/site-packages"
    (found / "p/__pycache__").mkdir(parents=True)
    (found / "p/__init__.py").write_text("")
    (found / "p/__pycache__/__init__.cpython-312.pyc").write_text(str(folder))
    (found / "_virtualenv.py").write_text("")
    (found / "p-1.dist-info").mkdir()
    lines = [
        f"../../../bin/p,sha256={hash(str(folder))},9", "p/__init__.py,sha256=x,0", "p-1.dist-info/RECORD,,",
        "p/__pycache__/__init__.cpython-312.pyc,,",
    ]  # fmt: skip
    (found / "p-1.dist-info/RECORD").write_text("".join(f"{line}\n" for line in lines[::order]))
    return folder / "bin/python"


def test_an_installation_elsewhere_gives_the_same_entries(tmp_path: Path) -> None:
    digests = set()
    for name, order in (("one", 1), ("two", -1)):
        host = HostFiles()
        for path in packages(_installed(tmp_path / name, order=order)):
            add_package(host, path, f"var/task/{path.name}")
        assert sorted(host.entries) == [
            "var/task/p", "var/task/p-1.dist-info", "var/task/p-1.dist-info/RECORD", "var/task/p/__init__.py",
        ]  # fmt: skip
        assert (
            host.entries["var/task/p-1.dist-info/RECORD"].content
            == b"p-1.dist-info/RECORD,,\np/__init__.py,sha256=x,0\n"
        )
        digests.add(content_digest(host.entries))
    assert len(digests) == 1
