"""Distributions: the files of each installed package, the requirement that needs it, and groups that stay together.

Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/.
"""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.parser import BytesHeaderParser
from pathlib import Path

from thawd.deploy.packages import elf
from thawd.deploy.packages.contents import Item, items_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHARED_FOLDERS = ("__pycache__", "bin", "share", "etc", "include", "lib")
"""Folders into which unrelated distributions put files."""
UNOWNED = "other files"
"""Name for the files that no distribution lists."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed package.

    Attributes:
        name: normalised name, such as ``aws-lambda-powertools``.
        version: version; empty for files without a distribution.
        items: its files.
        requires: names of the distributions that it always requires.
        may_require: names that it requires under a condition, such as an extra.
        is_requested: whether the requirements file names it.
    """

    name: str
    version: str
    items: tuple[Item, ...]
    requires: tuple[str, ...] = ()
    may_require: tuple[str, ...] = ()
    is_requested: bool = False


def read_distributions(folder: Path, requested: Collection[str]) -> list[Distribution]:
    """Return the distributions in a folder that `wheels.install` filled, by name. Blocks.

    Each file belongs to one distribution. If several list it, it belongs to the first by name. Distributions have
    different names: if a wheel brings the metadata of another with a name that exists, both count as one.

    Args:
        folder: the folder.
        requested: names that the requirements file contains. (uv marks all distributions as requested.)
    """
    names = {normalised(name) for name in requested}
    left = {item.path: item for item in items_of(folder) if item.path != ".lock"}
    found: dict[str, Distribution] = {}
    for metadata in sorted(folder.glob("*.dist-info/METADATA")):
        info = metadata.parent
        if not metadata.is_file():
            continue
        headers = BytesHeaderParser().parsebytes(metadata.read_bytes())
        owned = [left.pop(path) for path in [*_recorded(info, folder), *_below(left, info.name + "/")] if path in left]
        always, sometimes = _requirements(headers.get_all("Requires-Dist", []))
        # The parser returns an object of another class for a header that is not ASCII.
        name = normalised(str(headers.get("Name", "")).strip())
        if _NAME.fullmatch(name) is None:
            name = normalised(info.name.partition("-")[0]) or info.name
        read = Distribution(name, str(headers.get("Version", "")), tuple(owned), always, sometimes, name in names)
        found[name] = _merged(found[name], read) if name in found else read
    if left:
        found[UNOWNED] = Distribution(UNOWNED, "", tuple(left.values()))
    return [replace(found[name], items=_by_path(found[name].items)) for name in sorted(found)]


def _merged(one: Distribution, other: Distribution) -> Distribution:
    return replace(
        one,
        items=(*one.items, *other.items),
        requires=tuple(dict.fromkeys((*one.requires, *other.requires))),
        may_require=tuple(dict.fromkeys((*one.may_require, *other.may_require))),
    )


def _by_path(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: item.path))


def normalised(name: str) -> str:
    """Return a distribution's name as indexes compare it: lower case, with single hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _recorded(info: Path, folder: Path) -> Iterable[str]:
    """Yield the paths that a distribution's RECORD lists, relative to `folder`."""
    try:
        text = (info / "RECORD").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    for row in rows_of_record(text):
        yield recorded_path(row[0])


def rows_of_record(text: str) -> Iterator[list[str]]:
    """Yield the rows of a RECORD up to the first that cannot be read."""
    try:
        yield from (row for row in csv.reader(io.StringIO(text, newline="")) if row)
    except csv.Error:
        return


def recorded_path(path: str) -> str:
    """Return a path of a RECORD as a path below the folder into which everything was installed.

    Scripts are recorded by the path that they would have without --target, such as ``../../bin/f2py``.
    """
    path = posixpath.normpath(path)
    while path.startswith("../"):
        path = path.removeprefix("../")
    return path


def _below(paths: Iterable[str], prefix: str) -> list[str]:
    return [path for path in paths if path.startswith(prefix)]


def _requirements(lines: Sequence[object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    always: list[str] = []
    sometimes: list[str] = []
    for line in lines:
        text = str(line)
        if (name := _NAME.match(text)) is not None:
            (sometimes if ";" in text else always).append(normalised(name[0]))
    return tuple(dict.fromkeys(always)), tuple(dict.fromkeys(sometimes))


def brought_by(distributions: Sequence[Distribution]) -> dict[str, tuple[str, ...]]:
    """Return for each distribution the chain of names that leads to it from a requirement of the file.

    The chain begins with the requirement and ends with the distribution itself. The shortest chain is returned;
    requirements under conditions are used only for distributions that no other chain reaches.
    """
    by_name = {each.name: each for each in distributions}
    chains: dict[str, tuple[str, ...]] = {each.name: (each.name,) for each in distributions if each.is_requested}
    for conditional in (False, True):
        queue = deque(chains)
        while queue:
            name = queue.popleft()
            each = by_name[name]
            for other in (*each.requires, *(each.may_require if conditional else ())):
                if other in by_name and other not in chains:
                    chains[other] = (*chains[name], other)
                    queue.append(other)
    return {name: chains.get(name, (name,)) for name in by_name}


def groups(distributions: Sequence[Distribution]) -> dict[str, str]:
    """Return for each distribution the name of its group. Distributions of a group must be in the same folder.

    They share a folder of modules, or shared objects of one load those of the other. Blocks.
    """
    leader = {each.name: each.name for each in distributions}

    def lead(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    def join(one: str, other: str) -> None:
        first, second = sorted((lead(one), lead(other)))
        leader[second] = first

    folders: dict[str, str] = {}
    libraries: dict[str, str] = {}
    loads: dict[str, set[str]] = {}
    for each in distributions:
        for item in each.items:
            top, slash, rest = item.path.partition("/")
            if slash and top not in _SHARED_FOLDERS and not top.endswith(".dist-info"):
                join(folders.setdefault(top, each.name), each.name)
            name = (rest or top).rpartition("/")[2]
            if ".so" in name and item.is_file and (read := elf.read(item.source)) is not None:
                libraries.setdefault(name, each.name)
                loads.setdefault(each.name, set()).update(read.needed)
    for name, needed in loads.items():
        for library in sorted(needed):
            if library in libraries:
                join(name, libraries[library])
    return {each.name: lead(each.name) for each in distributions}
