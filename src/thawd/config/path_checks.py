"""Checks a configuration's paths on the disk: code must exist, and folders that thawd writes to must not overlap.

This module creates nothing. The server creates missing data folders and buckets when it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

from thawd.config.findings import Findings, KeyPath
from thawd.config.settings import Settings
from thawd.resources import Bucket

_NOTHING = "nothing"


def check_places(settings: Settings, findings: Findings) -> None:
    """Report all paths of the wrong kind, and all folders that overlap although they must not."""
    real = _RealPaths()
    _check_sources(settings, findings)
    _check_certificate(settings, findings)
    _check_data(settings, findings, real)
    _check_buckets(settings, findings, real)
    _check_tables(settings, findings, real)


def _check_sources(settings: Settings, findings: Findings) -> None:
    for name, function in settings.functions.items():
        wanted = {"code": (function.code, "a folder"), "requirements": (function.requirements, "a file")}
        for option, (path, kind) in wanted.items():
            if path is not None and (found := _kind_of(path)) != kind:
                findings.add(("functions", name, option), found=f"{found} at {path}", allowed=f"{kind} that exists")


def _check_certificate(settings: Settings, findings: Findings) -> None:
    """Report missing files. Users who may not look for them run commands that do not need them."""
    tls = settings.server.tls
    for name, path in (("certificate", tls.certificate), ("key", tls.key)) if tls is not None else ():
        if path is not None and (found := _kind_of(path)) in ("a folder", _NOTHING):
            findings.add(("server", "tls", name), found=f"{found} at {path}", allowed="a file that exists")


def _check_data(settings: Settings, findings: Findings, real: _RealPaths) -> None:
    data = settings.server.data
    _check_place(("server", "data"), data, findings, wanted="a folder")
    inside = [name for name, function in settings.functions.items() if real.contains(data, function.code)]
    if inside:
        found = f"a folder that contains the code of {', '.join(inside)}"
        findings.add(("server", "data"), found=found, allowed="a folder without code in it")


def _check_buckets(settings: Settings, findings: Findings, real: _RealPaths) -> None:
    forbidden = {settings.path: "this configuration", settings.server.data: "the data folder"}
    for name, function in settings.functions.items():
        forbidden.setdefault(function.code, f"the code of function {name}")
    for name, table in settings.tables.items():
        if table.path is not None and not real.contains(settings.server.data, table.path):
            forbidden[table.path] = f"the file of table {name}"
    seen: list[Bucket] = []
    for name, bucket in settings.buckets.items():
        path = ("buckets", name, "path")
        _check_place(path, bucket.path, findings, wanted="a folder")
        contained = [what for place, what in forbidden.items() if real.contains(bucket.path, place)]
        if contained:
            allowed = f"a folder of its own (every file in {bucket.path} is an object of the bucket)"
            findings.add(path, found=f"a folder that contains {' and '.join(contained)}", allowed=allowed)
        for other in seen:
            if real.contains(bucket.path, other.path) or real.contains(other.path, bucket.path):
                found = f"{bucket.path}, which overlaps {other.path} of bucket {other.name}"
                allowed = "a folder that is not the same as, inside or above another bucket's folder"
                findings.add(path, found=found, allowed=allowed)
        seen.append(bucket)


def _check_tables(settings: Settings, findings: Findings, real: _RealPaths) -> None:
    owners: dict[str, str] = {}
    for name, table in settings.tables.items():
        path = ("tables", name, "path")
        if table.path is None:
            continue
        _check_place(path, table.path, findings, wanted="a file")
        owner = owners.setdefault(real.of(table.path), name)
        if owner != name:
            findings.add(path, found=f"the file of table {owner}", allowed="a file of its own for each table")


def _check_place(path: KeyPath, place: Path, findings: Findings, *, wanted: str) -> None:
    kind = _kind_of(place)
    if kind not in (wanted, _NOTHING):
        findings.add(path, found=f"{kind} at {place}", allowed=f"{wanted}, or nothing yet")


def _kind_of(path: Path) -> str:
    """Describe in words what exists at a path."""
    try:
        if path.is_dir():
            return "a folder"
        if path.is_file():
            return "a file"
        return "something that is neither file nor folder" if path.exists() else _NOTHING
    except OSError as error:
        return f"a path that cannot be read ({error.strerror})"


class _RealPaths:
    """Paths without symbolic links, each found once: the code of thousands of functions is often in one folder."""

    def __init__(self) -> None:
        self._found: dict[Path, str] = {}

    def contains(self, folder: Path, place: Path) -> bool:
        """Whether `place` is `folder`, or in it."""
        real = self.of(folder)
        return self.of(place) == real or self.of(place).startswith(real.rstrip(os.sep) + os.sep)

    def of(self, path: Path) -> str:
        """The real path of `path`."""
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self._resolved(path)
        return found

    def _resolved(self, path: Path) -> str:
        try:
            if path.name not in ("", "..") and path.is_absolute() and not path.is_symlink():
                return str(Path(self.of(path.parent), path.name))
            return str(path.resolve())
        except (OSError, RuntimeError):
            # The path contains a loop of symbolic links, or a folder that thawd has no permission to enter. `_kind_of`
            # reports that to the user.
            return str(path.absolute())
