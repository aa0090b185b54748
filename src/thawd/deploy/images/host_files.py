"""Copies programs of this machine into a layer, with the shared libraries that they need, under the same paths.

Symbolic links on the way to a file, such as ``/lib`` to ``/usr/lib``, become links in the layer.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

from thawd.oci.layer_writing import NewEntry

PROGRAMS = "/usr/bin:/bin"
"""Folders of this machine where programs are searched for, in the form of PATH."""

_LIBRARY = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_SYSTEM = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")
_MOST_LINKS = 40
_ONE_CALL = 200


class HostFiles:
    """Entries of a layer with files of this machine.

    Attributes:
        entries: the entries so far.
    """

    def __init__(self) -> None:
        self.entries: dict[str, NewEntry] = {}

    def add(self, path: Path) -> None:
        """Add a file under its own path, with the links that lead to it. Raises OSError if it cannot be read."""
        waiting = list(reversed(path.parts[1:]))
        at: list[str] = []
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                at = at[:-1]
                continue
            at.append(part)
            here = Path("/", *at)
            if here.is_symlink():
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(f"{path}: too many links")
                target = os.readlink(here)  # noqa: PTH115 - the text as it is
                self.entries["/".join(at)] = NewEntry(symlink=target)
                at = [] if target.startswith("/") else at[:-1]
                waiting += [part for part in reversed(target.split("/")) if part not in ("", ".")]
            elif here.is_dir():
                self.entries.setdefault("/".join(at), NewEntry(stat.S_IMODE(here.stat().st_mode) & 0o755))
            else:
                self.entries["/".join(at)] = entry_of(here)

    def add_programs(self, names: Iterable[str]) -> None:
        """Add those programs that this machine has in the usual folders, with their libraries."""
        found = [Path(path) for name in names if (path := shutil.which(name, path=PROGRAMS))]
        for program in found:
            self.add(program)
        self.add_libraries(found, elsewhere="usr/lib")

    def add_named_libraries(self, names: Iterable[str]) -> None:
        """Add those libraries of the system that this machine has, with the libraries that they need."""
        folders = sorted({path.parent for path in _libraries([Path("/bin/sh")]).values()})
        folders += [Path(folder) for folder in _SYSTEM]
        found = [path for name in names if (path := _first(folder / name for folder in folders)) is not None]
        for path in found:
            self.add(path)
        self.add_libraries(found, elsewhere="usr/lib")

    def add_libraries(self, files: Iterable[Path], *, elsewhere: str) -> None:
        """Add the shared libraries that programs and libraries need.

        Args:
            files: programs and shared objects of this machine.
            elsewhere: folder in the image for libraries that are not in a system folder. The image's loader would not
                find them under their own paths.
        """
        for name, path in sorted(_libraries(list(files)).items()):
            if path.is_relative_to("/usr/local") or not str(path).startswith(_SYSTEM):
                self.entries[f"{elsewhere}/{name}"] = entry_of(path.resolve())
            else:
                self.add(path)

    def add_file(self, source: Path, target: str) -> None:
        """Add a file under another path."""
        self.entries[target] = entry_of(source)

    def add_tree(self, source: Path, target: str, *, without: frozenset[str] = frozenset()) -> None:
        """Add the contents of a folder below another path.

        Args:
            source: the folder.
            target: path in the image.
            without: names of files and folders that are left out at any depth.
        """
        waiting = [(source, target)]
        while waiting:
            folder, place = waiting.pop()
            self.entries.setdefault(place, NewEntry(0o755))
            for path in folder.iterdir():
                if path.name in without or path.name.endswith(".pyc"):
                    continue
                inside = f"{place}/{path.name}"
                if path.is_symlink():
                    target_text = os.readlink(path)  # noqa: PTH115 - the text as it is
                    if target_text.startswith("/") or not path.exists():
                        continue  # it leads to a place that the image does not have
                    self.entries[inside] = NewEntry(symlink=target_text)
                elif path.is_dir():
                    waiting.append((path, inside))
                elif path.is_file():
                    self.entries[inside] = entry_of(path)


def entry_of(path: Path) -> NewEntry:
    """Return the entry of a file: readable by all users, and executable if its owner may execute it."""
    executable = path.stat().st_mode & stat.S_IXUSR
    return NewEntry(0o755 if executable else 0o644, path)


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def _libraries(files: list[Path]) -> dict[str, Path]:
    """Return the libraries that files need, by name, with their paths on this machine. ldd(1)"""
    found: dict[str, Path] = {}
    for start in range(0, len(files), _ONE_CALL):
        done = subprocess.run(
            ["ldd", *map(str, files[start : start + _ONE_CALL])],
            capture_output=True,
            text=True,
            check=False,  # it fails for scripts and static programs
            env={**os.environ, "LC_ALL": "C"},
        )
        for name, path in _LIBRARY.findall(done.stdout):
            found.setdefault(name or Path(path).name, Path(path))
    return found
