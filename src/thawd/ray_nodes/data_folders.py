"""Data folders of a host's Ray nodes. A node finds its folder again after a restart, and a new one takes over an old.

Usually there is one node on a host, with the folder ``0``. If Ray is started again, its node has a new id. It then
takes the folder of the node that is gone, so that events in it are run. Several living nodes on a host have a folder
each.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from thawd.system import folders

_OWNERS = "nodes.json"


def chosen(owners: Mapping[str, str], node: str, alive: Set[str]) -> str:
    """Return the folder of a node: its own, else the first one of a node that is gone, else a new one.

    Args:
        owners: the node that each folder belongs to, by name of the folder.
        node: id of the node.
        alive: ids of the nodes that are alive.
    """
    for name, owner in owners.items():
        if owner == node:
            return name
    free = [name for name, owner in owners.items() if owner not in alive]
    return min(free, key=int) if free else str(len(owners))


def take(root: Path, node: str, alive: Set[str]) -> Path:
    """Return the data folder of a node, and note that it belongs to the node.

    Args:
        root: folder of the data folders, on a disk of this host; it is created if it is missing.
        node: id of the node.
        alive: ids of the nodes that are alive.

    Raises:
        OSError: the folder cannot be written.
        ValueError: the notes in it cannot be read.
    """
    folders.make(root, mode=0o700)
    with _locked(root):
        path = root / _OWNERS
        try:
            owners = dict(json.loads(path.read_text()))
        except FileNotFoundError:
            owners = {}
        name = chosen(owners, node, alive)
        owners[name] = node
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(owners, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    return root / name


def beside(data: Path) -> Path:
    """Return the folder of an agent's own files, beside the data folder of its thawd; it is created if it is missing.

    Raises:
        OSError: it cannot be created.
    """
    folder = data.with_name(f"{data.name}.ray")
    folders.make(folder, mode=0o700)
    return folder


def own_copy(project: Path, package: str, data: Path) -> Path:
    """Return a copy of the files that Ray has unpacked. Ray may remove its own, and does not say so.

    Args:
        project: the files.
        package: what identifies them.
        data: data folder of the thawd that needs them. No thawd uses it at present, so older copies are removed.

    Raises:
        OSError: they cannot be copied.
    """
    folder = beside(data)
    copy = folder / f"project-{package[:32]}"
    for old in folder.glob("project-*"):
        if old != copy:
            shutil.rmtree(old, ignore_errors=True)
    if not copy.exists():
        new = folder / "project-new"
        shutil.copytree(project, new)
        new.rename(copy)
    return copy


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    descriptor = os.open(root / "nodes.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
