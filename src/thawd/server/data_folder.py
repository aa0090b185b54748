"""The data folder is its owner's alone: seen to when a server, or a restore, takes hold of it.

It holds events, keys in environment variables, memory images with secrets, and code that thawd runs as its own user. So
nobody else may read it, and nobody else may write to it.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from thawd.errors import ThawdError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# Names that thawd gives in its data folder; what is called otherwise belongs to somebody else.
_OWN_FOLDERS = frozenset({"tables", "logs", "code", "packages", "environments", "tmp", "snapshots", "aws"})
_OWN_FILES = frozenset({"running", "lock", "address.json", "restore-unfinished"})
_OWN_BEGINNINGS = ("thawd.db", ".thawd-", *(f"{folder}.before-restore-" for folder in _OWN_FOLDERS))
# Folders in whose files everything lies that others must not read; the rest is behind a folder's own mode.
_WITH_FILES = ("tables", "logs", "code", "snapshots", "aws")


class NotOursError(ThawdError):
    """The data folder belongs to another user; the message says what follows from that, and the way out."""


def make_private(data: Path) -> list[str]:
    """Take the rights of everybody but its owner from the data folder and from the files in it.

    What thawd runs, it runs from this folder: one that belongs to another user is refused, unless thawd is root, whom a
    container's folder may well not belong to, or it is root's, who can do everything anyway.

    Args:
        data: the folder.

    Returns:
        What the operator should know of it; nothing when all was well.

    Raises:
        NotOursError: it belongs to another user.
        OSError: it cannot be read.
    """
    status = data.stat()
    mode = stat.S_IMODE(status.st_mode)
    notes = [_of_owner(data, status.st_uid)] if status.st_uid != os.geteuid() else []
    entries = list(os.scandir(data))
    strangers = sorted(entry.name for entry in entries if not _is_own(entry.name))
    if mode & _OTHERS and (strangers or mode & stat.S_ISVTX):
        others = f" and holds what is not thawd's ({', '.join(strangers[:3])})" if strangers else ""
        notes.append(
            f"the data folder {data} is open to other users (mode {mode:04o}){others}: its mode stays as it is, and "
            "thawd's own files in it are made their owner's alone; give thawd a folder of its own by server.data"
        )
    elif mode & _OTHERS:
        notes.append(
            f"the data folder {data} was open to other users (mode {mode:04o}); it and the files in it are its "
            "owner's alone now"
            if _take_rights(data, mode)
            else f"the data folder {data} is open to other users (mode {mode:04o}), and that cannot be changed here: "
            f"have its owner `chmod 700 {data}`"
        )
    for entry in entries:
        if _is_own(entry.name):
            _make_private(entry)
            if entry.name in _WITH_FILES and entry.is_dir(follow_symlinks=False):
                for inner in os.scandir(entry.path):
                    if inner.is_file(follow_symlinks=False):
                        _make_private(inner)
    return notes


def _of_owner(data: Path, owner: int) -> str:
    """What to tell of a folder that belongs to another user.

    Raises:
        NotOursError: thawd must not use it.
    """
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"number {owner}"
    whose = f"the data folder {data} belongs to the user {name}"
    way_out = "run thawd as that user, choose another folder with server.data or THAWD_DATA, or `chown -R` it"
    if owner and os.geteuid():
        raise NotOursError(f"{whose}, who could read what thawd keeps there and change what it runs: {way_out}")
    return f"{whose}, not to this one" if not owner else f"{whose}, who can change what thawd runs as root: {way_out}"


def _is_own(name: str) -> bool:
    return name in _OWN_FOLDERS or name in _OWN_FILES or name.startswith(_OWN_BEGINNINGS)


def _make_private(entry: os.DirEntry[str]) -> None:
    if not entry.is_symlink():
        try:
            mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return
        if mode & _OTHERS:
            _take_rights(Path(entry.path), mode)


def _take_rights(path: Path, mode: int) -> bool:
    try:
        path.chmod(mode & ~_OTHERS)
    except OSError:  # somebody else's, or on a file system without rights
        return False
    return True
