"""A server that root starts becomes another user, and its functions with it: `thawd up --user NAME`.

It gives its data folder to that user and then executes itself once more, so that nothing that root had opened or
remembers is left. Before a start, and at no other time.

Source: credentials(7).
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

from thawd.server.claims import StartError
from thawd.system import folders

_TRY_S = 60.0


def become(name: str, *, data: Path) -> None:
    """Go on as the user `name`; returns only where this process is that user already.

    Args:
        name: of the user.
        data: the data folder, which becomes the user's.

    Raises:
        StartError: there is no such user, or it cannot run thawd, or this process may not become another.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StartError(f"there is no user {name}: make one (useradd --system {name}), or name another") from None
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
    """Try it first: afterwards there is no way back."""
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
    """What root made in the data folder becomes the user's; the folder last, so that a start that was cut off goes on.

    Raises:
        OSError: something cannot be given away.
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
