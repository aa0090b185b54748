"""Checks a configuration's paths on the disk: code must exist, and folders that thawd writes to must not overlap.

This module creates nothing. The server creates missing data folders and buckets when it starts.
"""

from __future__ import annotations

from pathlib import Path

from thawd.config.findings import Findings, KeyPath
from thawd.config.settings import Settings
from thawd.resources import Bucket

_NOTHING = "nothing"


def check_places(settings: Settings, findings: Findings) -> None:
    """Report all paths of the wrong kind, and all folders that overlap although they must not."""
    _check_sources(settings, findings)
    _check_data(settings, findings)
    _check_buckets(settings, findings)
    _check_tables(settings, findings)


def _check_sources(settings: Settings, findings: Findings) -> None:
    for name, function in settings.functions.items():
        wanted = {"code": (function.code, "a folder"), "requirements": (function.requirements, "a file")}
        for option, (path, kind) in wanted.items():
            if path is not None and (found := _kind_of(path)) != kind:
                findings.add(("functions", name, option), found=f"{found} at {path}", allowed=f"{kind} that exists")


def _check_data(settings: Settings, findings: Findings) -> None:
    data = settings.server.data
    _check_place(("server", "data"), data, findings, wanted="a folder")
    real = _real(data)
    inside = [name for name, function in settings.functions.items() if _real(function.code).is_relative_to(real)]
    if inside:
        found = f"a folder that contains the code of {', '.join(inside)}"
        findings.add(("server", "data"), found=found, allowed="a folder without code in it")


def _check_buckets(settings: Settings, findings: Findings) -> None:
    forbidden = {settings.path: "this configuration", settings.server.data: "the data folder"}
    for name, function in settings.functions.items():
        forbidden.setdefault(function.code, f"the code of function {name}")
    for name, table in settings.tables.items():
        if table.path is not None and not _contains(settings.server.data, table.path):
            forbidden[table.path] = f"the file of table {name}"
    seen: list[Bucket] = []
    for name, bucket in settings.buckets.items():
        path = ("buckets", name, "path")
        _check_place(path, bucket.path, findings, wanted="a folder")
        contained = [what for place, what in forbidden.items() if _contains(bucket.path, place)]
        if contained:
            allowed = f"a folder of its own (every file in {bucket.path} is an object of the bucket)"
            findings.add(path, found=f"a folder that contains {' and '.join(contained)}", allowed=allowed)
        for other in seen:
            if _contains(bucket.path, other.path) or _contains(other.path, bucket.path):
                found = f"{bucket.path}, which overlaps {other.path} of bucket {other.name}"
                allowed = "a folder that is not the same as, inside or above another bucket's folder"
                findings.add(path, found=found, allowed=allowed)
        seen.append(bucket)


def _check_tables(settings: Settings, findings: Findings) -> None:
    owners: dict[Path, str] = {}
    for name, table in settings.tables.items():
        path = ("tables", name, "path")
        if table.path is None:
            continue
        _check_place(path, table.path, findings, wanted="a file")
        owner = owners.setdefault(_real(table.path), name)
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


def _contains(folder: Path, place: Path) -> bool:
    return _real(place).is_relative_to(_real(folder))


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        # The path contains a loop of symbolic links, or a folder that thawd has no permission to enter. `_kind_of`
        # reports that to the user.
        return path.absolute()
