"""COPY and ADD: finds the sources in a folder or an image, and returns the entries of the new layer.

Sources must be inside the folder: ``..`` and links that lead out of it are refused. Links in a source folder are copied
as links. This module writes no file.

Source: https://docs.docker.com/reference/dockerfile/#copy, #add.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from thawd.deploy.images.dockerfile.ignoring import Ignored, pattern
from thawd.errors import ImageError
from thawd.oci.image_paths import resolve_folder
from thawd.oci.layer_writing import NewEntry, add_parents

_WILDCARDS = "*?["


@dataclass(frozen=True, slots=True)
class Sources:
    """The folder from which COPY copies.

    Attributes:
        folder: the build's folder, or the root of an image.
        ignored: paths in it that are left out.
        name: names the folder in messages.
    """

    folder: Path
    ignored: Ignored
    name: str


@dataclass(frozen=True, slots=True)
class Destination:
    """The path to which COPY copies.

    Attributes:
        root: folder with the image so far.
        path: absolute path in the image. A slash at the end means a folder.
        mode: permissions of the flag ``--chmod``; None: those of the sources.
        uid: owner of the copied files.
        gid: owning group.
        owners: user and group of the image's paths that do not belong to root.
    """

    root: Path
    path: str
    mode: int | None = None
    uid: int = 0
    gid: int = 0
    owners: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def copied(sources: Sources, patterns: Sequence[str], destination: Destination) -> dict[str, NewEntry]:
    """Return the entries of the layer that COPY makes.

    Args:
        sources: the folder with the sources.
        patterns: sources, as paths with wildcards.
        destination: the path to which they are copied.

    Raises:
        ImageError: a source is missing, leads out of the folder, or cannot be copied (HTTP 400).
    """
    found: list[str] = []
    for each in patterns:
        matches = list(_matches(sources, each))
        if not matches:
            raise ImageError(f"{each!r} is not in {sources.name}, or .dockerignore leaves it out")
        found += matches
    into_folder = destination.path.endswith("/") or is_folder(destination)
    if len(found) > 1 and not into_folder:
        raise ImageError(f"{len(found)} files are copied to {destination.path!r}: end it with / to make it a folder")
    entries: dict[str, NewEntry] = {}
    target = inside(destination, into_folder)
    for source in found:
        path = _followed(sources, source)
        if path.is_dir():
            _add_tree(entries, sources, str(path)[len(str(sources.folder)) :].strip("/"), target, destination)
        else:
            name = f"{target}/{source.rpartition('/')[2]}".lstrip("/") if into_folder else target
            entries[name] = _entry(path, destination)
    placed(entries, destination)
    return entries


def placed(entries: dict[str, NewEntry], destination: Destination) -> None:
    """Add the folders above the entries. Those that the image has keep their modes and owners."""
    exist: dict[str, NewEntry] = {}
    for path in list(entries):
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count])
            if folder not in exist:
                try:
                    mode = stat.S_IMODE((destination.root / folder).lstat().st_mode)
                except OSError:
                    break
                uid, gid = destination.owners.get(folder, (0, 0))
                exist[folder] = NewEntry(mode, uid=uid, gid=gid)
    add_parents(entries, list(entries), exist)
    entries.pop("", None)


def written(texts: Sequence[tuple[str, str]], destination: Destination) -> dict[str, NewEntry]:
    """Return the entries for texts in the Dockerfile itself (heredocs), by their names."""
    into_folder = destination.path.endswith("/") or len(texts) > 1 or is_folder(destination)
    target = inside(destination, into_folder)
    mode = 0o644 if destination.mode is None else destination.mode
    entries = {
        (f"{target}/{name}".lstrip("/") if into_folder else target): NewEntry(
            mode, content.encode(), uid=destination.uid, gid=destination.gid
        )
        for name, content in texts
    }
    placed(entries, destination)
    return entries


def _matches(sources: Sources, text: str) -> Iterator[str]:
    """Yield the paths, relative to the folder, that a source names. ``""`` is the folder itself."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ImageError(f"{text!r} leads out of {sources.name}; copy from inside of it")
    waiting = [""]
    for part in parts:
        following: list[str] = []
        for at in waiting:
            folder = _resolved(sources, at)
            if folder is None:
                continue
            if any(char in part for char in _WILDCARDS):
                expression = pattern(part)
                following += [
                    f"{at}/{name}".lstrip("/") for name in sorted(os.listdir(folder)) if expression.match(name)
                ]
            elif os.path.lexists(folder / part):
                following.append(f"{at}/{part}".lstrip("/"))
        waiting = following
    for path in waiting:
        whole = sources.folder / path
        is_folder = whole.is_dir() and not whole.is_symlink()
        if not path or not sources.ignored(path) or (is_folder and sources.ignored.brings_back):
            yield path


def _resolved(sources: Sources, path: str) -> Path | None:
    found = resolve_folder(str(sources.folder), path.split("/"), what=f"{path!r} in {sources.name}")
    return None if found is None else Path(found)


def _followed(sources: Sources, source: str) -> Path:
    """Return the file that a source names. If the name is that of a link, the link is followed inside the folder."""
    path = sources.folder / source
    for _ in range(40):
        if not source or not path.is_symlink():
            return path
        target = os.readlink(path)
        parts = target.split("/")
        base = [] if target.startswith("/") else list(path.relative_to(sources.folder).parts[:-1])
        what = f"{source!r} in {sources.name}"
        whole = resolve_folder(str(sources.folder), [*base, *parts], what=what)
        if whole is not None:
            return Path(whole)
        folder = resolve_folder(str(sources.folder), [*base, *parts[:-1]], what=what)
        if folder is None or not os.path.lexists(f"{folder}/{parts[-1]}"):
            raise ImageError(f"{source!r} in {sources.name} is a link to {target!r}, which is not there")
        path = Path(folder, parts[-1])
    raise ImageError(f"{source!r} in {sources.name} is a link that leads in a circle")


def _add_tree(
    entries: dict[str, NewEntry], sources: Sources, source: str, target: str, destination: Destination
) -> None:
    """Add the contents of a folder. Docker copies a folder's contents, not the folder."""
    top = _resolved(sources, source)
    if top is None:
        raise ImageError(f"{source!r} is not in {sources.name}")
    if not _stays(destination, target):
        entries[target] = _entry(top, destination)
    waiting = [(top, source, target)]
    while waiting:
        folder, within, place = waiting.pop()
        for name in sorted(os.listdir(folder)):
            path, relative, to = folder / name, f"{within}/{name}".lstrip("/"), f"{place}/{name}".lstrip("/")
            is_folder = path.is_dir() and not path.is_symlink()
            ignored = sources.ignored(relative)
            if is_folder and (not ignored or sources.ignored.brings_back):
                _stays(destination, to)
                waiting.append((path, relative, to))
            if not ignored:
                entries[to] = _entry(path, destination)


def _stays(destination: Destination, place: str) -> bool:
    """Return whether the image has a folder at the path to which a folder is copied.

    Raises:
        ImageError: it has something else there, such as a link to a folder, which the copy would replace (HTTP 400).
    """
    try:
        found = (destination.root / place).lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found):
        raise ImageError(
            f"a folder would be copied to /{place}, where the image has a {'link' if stat.S_ISLNK(found) else 'file'}: "
            "copy it to another place, or to the one that the link leads to"
        )
    return True


def _entry(path: Path, destination: Destination) -> NewEntry:
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode) if destination.mode is None else destination.mode
    if stat.S_ISLNK(found.st_mode):
        return NewEntry(0o777, symlink=os.readlink(path), uid=destination.uid, gid=destination.gid)
    if stat.S_ISDIR(found.st_mode):
        return NewEntry(mode, uid=destination.uid, gid=destination.gid)
    if stat.S_ISREG(found.st_mode):
        return NewEntry(mode, path, uid=destination.uid, gid=destination.gid)
    raise ImageError(f"{path} is neither a file, a folder nor a link, and cannot be copied")


def is_folder(destination: Destination) -> bool:
    """Return whether the image has a folder at a destination."""
    parts = destination.path.split("/")
    return resolve_folder(str(destination.root), parts, what=f"the destination {destination.path!r}") is not None


def inside(destination: Destination, into_folder: bool = False) -> str:
    """Return a destination's path relative to the root, without the links of the image.

    Args:
        destination: the destination.
        into_folder: whether a link at the destination itself is followed, too.
    """
    what = f"the destination {destination.path!r}"
    parts = [part for part in destination.path.split("/") if part not in ("", ".")]
    if ".." in parts:
        parts = [part for part in os.path.normpath("/" + "/".join(parts)).split("/") if part]
    whole = resolve_folder(str(destination.root), parts, what=what) if into_folder else None
    if whole is not None:
        return whole[len(str(destination.root)) :].strip("/")
    # The existing part of the path is resolved. The rest will be made below it.
    for count in range(len(parts) - 1, -1, -1):
        folder = resolve_folder(str(destination.root), parts[:count], what=what)
        if folder is not None:
            above = folder[len(str(destination.root)) :].strip("/")
            return "/".join([*([above] if above else []), *parts[count:]])
    raise AssertionError("the root itself is a folder")
