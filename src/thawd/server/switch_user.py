"""Switches a server that was started as root to another user: `thawd up --user NAME`.

The server makes that user the owner of its data folder and then executes its program again, so that no open files and
no memory of root's process remain. This happens before anything else is started.

Source: credentials(7).
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

from thawd.server.port_and_folder_locks import StartError
from thawd.system import folders

_TRY_S = 60.0


def become(name: str, *, data: Path) -> None:
    """Execute this program again as the user `name`. Returns only if the process runs as that user already.

    Args:
        name: name of the user.
        data: the data folder; the user becomes its owner.

    Raises:
        StartError: the user does not exist or cannot run thawd, or this process is not root.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StartError(f"there is no user {name}: add it (useradd --system {name}), or name another user") from None
    if os.geteuid() == user.pw_uid:
        return
    if os.geteuid() != 0:
        raise StartError(
            f"only root can switch to the user {name}: leave out --user and server.user, or start thawd as root"
        )
    _check(user)
    try:
        _give(data, user)
    except OSError as error:
        raise StartError(f"the owner of the data folder {data} cannot be changed to {name}: {error}") from error
    environ = {**os.environ, "HOME": user.pw_dir, "USER": name, "LOGNAME": name}
    os.initgroups(name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)


def _check(user: pwd.struct_passwd) -> None:
    """Check that the user can run thawd, because the switch cannot be undone."""
    command = [sys.executable, "-c", "import thawd.server"]
    try:
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        tried = subprocess.run(
            command,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=groups,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StartError(
            f"{user.pw_name} cannot run {sys.executable} ({error}): install thawd where that user can read it, and "
            "start it from a folder that the user may enter"
        ) from error
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or [f"status {tried.returncode}"])[-1]
        raise StartError(f"{user.pw_name} cannot run thawd ({last}): install it where that user can read it")


def _give(data: Path, user: pwd.struct_passwd) -> None:
    """Make the user the owner of root's files in the data folder.

    The folder itself comes last: after an interruption it still belongs to root, so the next start continues.

    Raises:
        OSError: the owner of a file cannot be changed.
    """
    folders.make(data, mode=0o700)
    if data.stat().st_uid != 0:
        return
    for place, inner, names in os.walk(data):
        for name in inner + names:
            path = Path(place) / name
            if path.lstat().st_uid == 0:
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    os.chown(data, user.pw_uid, user.pw_gid)
