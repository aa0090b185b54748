"""The commands `thawd`, `aws` and `sam` for shells: they fork prepared processes and import nothing each time.

Importing `thawd` takes 0.1 s of processor time, `aws` 0.4 s, `sam` 0.8 s, and the pages of the documentation contain a
hundred such commands. `folder` returns a folder for the front of PATH, `command` one command. A command sends its
arguments, folder, environment and standard streams to a process that has imported the program. That process forks, the
fork runs the installed script of the program, and the command exits with its status. A fork outlives a command that is
killed.

With ``THAWD_TESTS_EXECUTE=1`` the folder contains the programs themselves, as in the tests of `thawd.cli`.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import shutil
import socket
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests import prestarted

TOOLS = Path(sys.executable).parent
PROGRAMS = ("thawd", "aws")
_LONGEST_BYTES = 1 << 20
# Starts in 10 ms: it imports nothing that is not built in.
_COMMAND = """#!{python} -IS
import _socket, marshal, posix, sys
program = {name!r} + (" --aws" if {name!r} == "thawd" and sys.argv[1:2] == ["up"] else "")
umask = posix.umask(0)
posix.umask(umask)
asked = marshal.dumps((sys.argv[1:], posix.getcwd(), posix.environ, umask))
served = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
served.connect(f"{folder}/{{program}}.socket")
streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2))
served.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
status = int(served.recv(64) or 137)
posix._exit(status if status >= 0 else 128 - status)
"""


def folder() -> Path:
    """Return the folder with both commands. It is removed when this process ends."""
    return {command(name).parent for name in PROGRAMS}.pop()


@cache
def command(program: str, installed: Path | None = None) -> Path:
    """Return one of the commands; only what it needs is started.

    Args:
        program: the command.
        installed: the program in another virtual environment.
    """
    installed = installed or TOOLS / program
    if not prestarted.MAY_FORK:
        return installed
    for name in ("thawd", "thawd --aws") if program == "thawd" else (program,):
        _start_serving(name, installed)
    made = _folder() / program
    made.write_text(_COMMAND.format(python=sys.executable, name=program, folder=str(_folder())))
    made.chmod(0o755)
    return made


@cache
def _folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="thawd-commands-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _start_serving(name: str, installed: Path) -> None:
    """Start a process that serves commands of one name until this process ends."""
    own, lifeline = socket.socketpair()
    with lifeline, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(_folder() / f"{name}.socket"))
        listening.listen(64)
        python = sys.executable if installed.parent == TOOLS else str(installed.parent / "python")
        pid = prestarted.serve_in_fork(
            name, f"{__name__}._serve", [name, str(installed)], [listening, lifeline], python=python
        )

    def end() -> None:
        own.close()
        with contextlib.suppress(ChildProcessError):  # a test that reaps all children of this process has reaped it
            os.waitpid(pid, 0)

    atexit.register(end)


def _serve(name: str, script: str, listening: socket.socket, lifeline: socket.socket) -> None:
    while lifeline not in select.select([listening, lifeline], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            lifeline.close()
            os._exit(_run(name, script, connection))
        connection.close()
        while _reap():
            pass


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _run(name: str, script: str, connection: socket.socket) -> int:
    """Run a command in a fork, and send its exit status, or the negative number of the signal that ended it."""
    sent, streams, _, _ = socket.recv_fds(connection, _LONGEST_BYTES, 3)
    arguments, cwd, environ, umask = marshal.loads(sent)
    pid = os.fork()
    if pid == 0:
        connection.close()
        asked = {
            "arguments": arguments,
            "cwd": cwd,
            "environ": {os.fsdecode(key): os.fsdecode(value) for key, value in environ.items()},
            "umask": umask,
            "script": script,
        }
        os._exit(prestarted.run_here(name, asked, streams))
    for fd in streams:
        os.close(fd)
    connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    return 0
