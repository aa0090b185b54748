"""Makes the data folder private to its owner when a server or a command, such as `thawd restore`, locks it.

The folder contains events, keys in environment variables, memory images with secrets, and code that thawd runs as its
own user. So no other user may read it or write to it.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from thawd.errors import ThawdError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# Names of thawd's own files and folders in the data folder. Everything else in it belongs to other programs.
_OWN_FOLDERS = frozenset(
    {
        "tables",
        "logs",
        "code",
        "packages",
        "environments",
        "images",
        "tmp",
        "snapshots",
        "received-chunks",
        "aws",
        "uv",
        "cluster",
    }
)
_OWN_FILES = frozenset({"running", "lock", "address.json", "restore-unfinished", "snapshots.key", "machine"})
_OWN_BEGINNINGS = (
    "thawd.db",
    "records.db",
    "newest-thawd",
    ".thawd-",
    *(f"{folder}.before-restore-" for folder in _OWN_FOLDERS),
)
# Folders whose files are made private one by one; in the others, the mode of the folder protects the files.
_WITH_FILES = ("tables", "logs", "code", "snapshots", "aws", "cluster")


class NotOursError(ThawdError):
    """The data folder belongs to another user. The message says what the risk is and what to do."""


def make_private(data: Path) -> list[str]:
    """Remove the permissions of other users from the data folder and from thawd's files in it.

    The mode of a folder that also contains files of other programs, or that is shared like ``/tmp``, is not changed.

    thawd runs code from this folder, so a folder that belongs to another user is refused. There are two exceptions:
    thawd may run as root, because in containers the folder often belongs to another user; and the folder may belong to
    root, who can do everything anyway.

    Args:
        data: the folder.

    Returns:
        Lines for the operator; empty if the folder was already private.

    Raises:
        NotOursError: the folder belongs to another user.
        OSError: the folder cannot be read.
    """
    status = data.stat()
    mode = stat.S_IMODE(status.st_mode)
    notes = [_of_owner(data, status.st_uid)] if status.st_uid != os.geteuid() else []
    entries = list(os.scandir(data))
    strangers = sorted(entry.name for entry in entries if not _is_own(entry.name))
    if mode & _OTHERS and (strangers or mode & stat.S_ISVTX):
        others = f" and contains files of other programs ({', '.join(strangers[:3])})" if strangers else ""
        notes.append(
            f"the data folder {data} is open to other users (mode {mode:04o}){others}: thawd does not change the "
            "folder's mode, and makes only thawd's own files in the folder private; choose a folder for thawd alone "
            "with server.data"
        )
    elif mode & _OTHERS:
        notes.append(
            f"the data folder {data} was open to other users (mode {mode:04o}); now it and the files in it are private "
            "to its owner"
            if _take_rights(data, mode)
            else f"the data folder {data} is open to other users (mode {mode:04o}), and thawd cannot change that; let "
            f"its owner run `chmod 700 {data}`"
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
    """Line about a folder that belongs to another user.

    Raises:
        NotOursError: thawd must not use the folder.
    """
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"number {owner}"
    whose = f"the data folder {data} belongs to the user {name}"
    way_out = (
        "run thawd as that user, choose another folder with server.data or THAWD_DATA, or change the owner with "
        "`chown -R`"
    )
    if owner and os.geteuid():
        raise NotOursError(
            f"{whose}, who could read thawd's data in it and change the code that thawd runs from it: {way_out}"
        )
    if owner:
        return f"{whose}, who can change the code that thawd runs as root: {way_out}"
    return f"{whose}, not to the user that runs thawd"


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
    except OSError:  # another user's file, or a file system without permissions
        return False
    return True
