"""Switches a server that root starts to another user: `thawd up --user NAME`.

The server gives its data folder to that user and then executes itself again, so that no open file and no memory of
root's process remains. This happens only before a start.

Source: credentials(7).
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

from thawd.server.exclusive_resources import StartError
from thawd.system import folders

_TRY_S = 60.0


def become(name: str, *, data: Path) -> None:
    """Continue as the user `name`; returns only where this process runs as that user already.

    Args:
        name: name of the user.
        data: the data folder, which becomes the user's.

    Raises:
        StartError: the user does not exist or cannot run thawd, or this process is not root.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StartError(f"there is no user {name}: add one (useradd --system {name}), or name another") from None
    if os.geteuid() == user.pw_uid:
        return
    if os.geteuid() != 0:
        raise StartError(f"only root can become {name}: leave --user and server.user out, or start thawd as root")
    _check(user)
    try:
        _give(data, user)
    except OSError as error:
        raise StartError(f"the data folder {data} cannot be given to {name}: {error}") from error
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
            "start it from a folder that it may enter"
        ) from error
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or [f"status {tried.returncode}"])[-1]
        raise StartError(f"{user.pw_name} cannot run thawd ({last}): install it where that user can read it")


def _give(data: Path, user: pwd.struct_passwd) -> None:
    """Give root's files in the data folder to the user.

    The folder itself comes last: after an interrupted start it is still root's, and the next start continues.

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
