"""`thawd.runtime.search_path`: the order of ``sys.path``, and ``.pth`` files, as in Lambda's Python runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from thawd import __file__ as package_file

BOOTSTRAP = Path(package_file).parent / "runtime"
ASK = f"""
import sys
sys.path.insert(0, {str(BOOTSTRAP)!r})
import bootstrap
bootstrap.load_own_package()
from thawd.runtime import search_path
before = list(sys.path)
search_path.set_up(sys.argv[1])
print([one for one in sys.path if one not in before])
"""
PACKAGES = "python/lib/python{}.{}/site-packages".format(*sys.version_info[:2])


def told(task: Path, *layers: Path) -> str:
    variables = {"THAWD_LAYERS": ":".join(map(str, layers))} if layers else {}
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(task)], env=variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def test_the_code_comes_first_then_the_layers_packages_then_the_layers_modules(tmp_path: Path) -> None:
    for folder in ("task", "later/python", f"later/{PACKAGES}", f"first/{PACKAGES}", "without"):
        (tmp_path / folder).mkdir(parents=True)
    found = told(tmp_path / "task", tmp_path / "later", tmp_path / "first", tmp_path / "without", tmp_path / "gone")
    named = ("task", f"later/{PACKAGES}", f"first/{PACKAGES}", "later/python", "first/python")
    assert found == f"{[str(tmp_path / name) for name in named]}\n"


def test_pth_files_of_the_code_and_of_layers_are_read(tmp_path: Path) -> None:
    places = (tmp_path / "task", tmp_path / "layer" / "python", tmp_path / "layer" / PACKAGES)
    for place in places:
        (place / "more").mkdir(parents=True)
        (place / "own.pth").write_text(f"more\nimport sys; print('read', {place.name!r})\n")
    found = told(tmp_path / "task", tmp_path / "layer")
    assert [line for line in found.splitlines() if line.startswith("read")] == [
        "read task",
        "read site-packages",
        "read python",
    ]
    assert all(str(place / "more") in found for place in places)


def test_without_layers_only_the_code_is_added(tmp_path: Path) -> None:
    assert told(tmp_path) == f"{[str(tmp_path)]}\n"
