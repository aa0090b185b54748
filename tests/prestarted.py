"""Runs a Python module as a process without importing it each time: forks one process that has imported it.

Importing a server takes a third of a second of processor time, and the tests start some hundreds of servers. So each
worker keeps one process that has imported the module and does nothing else. `Popen` asks it for a fork, which becomes a
child of the worker itself (CLONE_PARENT), with the arguments, folder, environment and streams that the test names.
After that it is a process like any other, with its own process id; it can be signalled, killed and waited for.
Processes with a library in LD_PRELOAD are forked from a process that has loaded this library, too. The fork does not
pass the variable on: the libraries of the tests are for the server alone.

A server with ``--aws`` starts the emulator. It is a child of the server, so that only the server can fork it. The
original of such servers has imported the emulator's modules, too. Its fork forks once more before it becomes the
server, and that process waits until the server starts the emulator. This original is a fork of the original of servers,
and an emulator without a server is a fork of it: so each worker imports nothing twice.

A fork differs from an executed program in what it inherits: the interpreter's options, its hash seed and what importing
read from the environment and the clock. Tests of these things start their processes with `subprocess.Popen`, or with
``THAWD_TESTS_EXECUTE=1`` among their variables. If the tests themselves have this variable, all programs are executed.

Source: clone(2), "CLONE_PARENT"; unix(7), "SCM_RIGHTS".
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.imported_ahead import EMULATOR, IMPORTED, ROOT, SET_BY_IMPORTS, import_ahead

# The original of a program that is the original of another program, and one that is a fork of another original.
_ORIGINALS = {EMULATOR: "thawd --aws"}
_FORKED = {"thawd --aws": "thawd"}
# Both modules are imported here because a server must not find the folder of the tests.
_EXECUTED = """
import socket, sys
from tests import prestarted, shell_programs
prestarted._serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
"""

PROJECTS = ("template.yaml", "template.yml", "cdk.out", "serverless.yml")
"""Files and folders of other tools' projects: in a folder with one of them, `thawd up` starts the emulator, too."""

_PRELOAD = "LD_PRELOAD"
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_LONGEST_BYTES = 1 << 20

SCRIPTS: set[str] = set()
"""Scripts that run in place of the module: ``[script, "-m", module, *arguments]`` is a fork, too."""

EXECUTE = "THAWD_TESTS_EXECUTE"
"""The environment variable with which programs are executed: those of all tests, or the one that gets it."""

MAY_FORK = sys.platform == "linux" and os.uname().machine in _SYS_CLONE and not os.environ.get(EXECUTE)
"""Whether programs can be forked here, and are to be."""


class Popen(subprocess.Popen[Any]):
    """Like `subprocess.Popen` of ``[sys.executable, "-m", module, *arguments]``, without importing the module.

    The program is executed instead if a fork would differ: with environment variables that change how Python starts,
    and with options other than streams, folder, environment and text.
    """

    def _execute_child(self, *arguments: Any) -> None:
        execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        given = inspect.signature(execute).bind(self, *arguments).arguments
        program = _program_of(given["args"], given["cwd"])
        special = ("preexec_fn", "pass_fds", "shell", "gid", "gids", "uid", "start_new_session")
        if (
            program is None
            or (given["env"] or {}).get(EXECUTE)
            or any(given[name] for name in special)
            or given["umask"] != -1
            or given.get("process_group", -1) != -1
            or _changes_python(given["env"])
        ):
            execute(self, *arguments)
            return
        streams = [
            own if own != -1 else standard
            for own, standard in ((given["p2cread"], 0), (given["c2pwrite"], 1), (given["errwrite"], 2))
        ]
        try:
            preloaded = (given["env"] or os.environ).get(_PRELOAD, "")
            libraries = "" if preloaded == os.environ.get(_PRELOAD, "") else preloaded
            original = _original(_ORIGINALS.get(program, program), libraries)
            arguments, script = list(given["args"]), None
            if arguments[0] in SCRIPTS:
                script = arguments[0]
            self.pid = original.fork(program, arguments[3:], given["cwd"], given["env"], streams, script)
            self._child_created = True
        finally:
            self._close_pipe_fds(*(given[name] for name in _PIPES))  # type: ignore[attr-defined]


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Like `subprocess.run`, with `Popen`."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    text, timeout_s, check = options.pop("input", None), options.pop("timeout", None), options.pop("check", False)
    if text is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(arguments, **options) as process:
        try:
            out, err = process.communicate(text, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _program_of(arguments: Any, cwd: Any) -> str | None:
    """Return the program that is run in a folder, as in `IMPORTED`, or None if a fork cannot run it."""
    if not MAY_FORK or isinstance(arguments, str) or threading.current_thread() is not threading.main_thread():
        return None
    given = [str(argument) for argument in arguments]
    if given[0] in SCRIPTS:
        given[0] = sys.executable
    if given[:2] != [sys.executable, "-m"] or given[2] not in IMPORTED:
        return None
    has_stacks = any(Path(cwd or ".", name).exists() for name in PROJECTS)
    return "thawd --aws" if "--aws" in given or ("up" in given and has_stacks) else given[2]


def _changes_python(environ: Mapping[str, str] | None) -> bool:
    """Return whether the environment variables would make the interpreter start differently from this one."""
    if environ is None:
        return False
    names = {name for name in {*os.environ, *environ} if name.startswith(("PYTHON", "LD_", "LC_", "LANG"))}
    return any(environ.get(name) != os.environ.get(name) for name in names - {_PRELOAD})


class _Original:
    """The process that has imported the modules of a program and is forked.

    Args:
        program: the program, as in `IMPORTED`.
        preloaded: the libraries of LD_PRELOAD.
        python: the interpreter that has the program.
    """

    def __init__(self, program: str, preloaded: str, python: str) -> None:
        self._preloaded, self._python = preloaded, python
        self._own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if program in _FORKED and not preloaded:
                pid = _original(_FORKED[program], "").serve(f"{__name__}._serve", [program], [theirs])
                self._wait: Callable[[], object] = partial(os.waitpid, pid, 0)
            else:
                self._wait = self._execute(program, theirs).wait
        atexit.register(self._end)

    def _execute(self, program: str, asking: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._python, "-c", _EXECUTED, program, str(asking.fileno())],
            cwd=ROOT,
            env={**os.environ, _PRELOAD: self._preloaded} if self._preloaded else None,
            pass_fds=[asking.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def fork(
        self,
        program: str,
        arguments: Sequence[Any],
        cwd: Any,
        environ: Mapping[str, str] | None,
        streams: list[int],
        script: str | None,
    ) -> int:
        """Fork the process. The fork runs the program, or the script in its place; return its process id."""
        given = {**(os.environ if environ is None else environ)}
        if self._preloaded:
            del given[_PRELOAD]
        _ask(self._own, program, arguments, cwd, given, streams, script=script)
        return self._forked()

    def serve(self, function: str, arguments: Sequence[str], sockets: Sequence[socket.socket]) -> int:
        """Fork the process. The fork calls a function of the tests; return its process id."""
        asked = json.dumps({"function": function, "arguments": arguments}).encode()
        socket.send_fds(self._own, [asked], [each.fileno() for each in sockets])
        return self._forked()

    def _forked(self) -> int:
        answer = self._own.recv(64)
        assert answer, "the process to fork from has ended"
        return int(answer)

    def _end(self) -> None:
        self._own.close()
        with contextlib.suppress(ChildProcessError):  # a test that reaps all children of this process has reaped it
            self._wait()


def _ask(
    by: socket.socket,
    program: str,
    arguments: Sequence[Any],
    cwd: Any,
    environ: Mapping[str, str],
    streams: list[int],
    *,
    script: str | None = None,
) -> None:
    """Send what a process that has imported a program needs for running it."""
    asked = {
        "program": program,
        "arguments": [os.fsdecode(argument) for argument in arguments],
        "cwd": os.fsdecode(cwd or Path.cwd()),
        "environ": {**environ},
        "umask": _umask(),
        "script": script,
    }
    socket.send_fds(by, [json.dumps(asked).encode("utf-8", "surrogateescape")], streams)


@cache
def _original(program: str, preloaded: str, python: str = sys.executable) -> _Original:
    return _Original(program, preloaded, python)


def serve_in_fork(
    program: str,
    function: str,
    arguments: Sequence[str],
    sockets: Sequence[socket.socket],
    *,
    python: str = sys.executable,
) -> int:
    """Call a function in a fork of a process that has imported a program; return the process id of that child.

    Args:
        program: the program, as in `IMPORTED`.
        function: the function's module and name.
        arguments: its first arguments.
        sockets: its other arguments; the fork has copies of them.
        python: the interpreter that has the program.
    """
    return _original(program, "", python).serve(function, arguments, sockets)


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _serve(program: str, asking: socket.socket) -> None:
    """Import the modules, then fork on request until the worker has ended."""
    import_ahead(program)
    python = ctypes.PyDLL(None)  # calls without releasing the GIL, as a fork requires
    number = _SYS_CLONE[os.uname().machine]
    while True:
        sent, streams, _, _ = socket.recv_fds(asking, _LONGEST_BYTES, 3)
        if not sent:
            return
        python.PyOS_BeforeFork()
        pid = python.syscall(number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            python.PyOS_AfterFork_Child()
            asking.close()
            os._exit(_run_fork(json.loads(sent), streams))
        python.PyOS_AfterFork_Parent()
        for fd in streams:
            os.close(fd)
        asking.send(str(pid).encode())


def _run_fork(asked: Mapping[str, Any], received: Sequence[int]) -> int:
    """Run a program, or a function of the tests, in this fork; return its exit status."""
    if "program" in asked:
        return run_here(asked["program"], asked, received)
    module, _, name = asked["function"].rpartition(".")
    try:
        getattr(sys.modules[module], name)(*asked["arguments"], *(socket.socket(fileno=fd) for fd in received))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_here(program: str, asked: Mapping[str, Any], streams: Sequence[int]) -> int:
    """Run the program in this process, which was forked for that, and return its exit status.

    Args:
        program: the program, as in `IMPORTED`.
        asked: arguments, folder, environment variables and umask; perhaps the script to run in place of the module.
        streams: the standard streams.
    """
    module, script = program.partition(" ")[0], asked.get("script")
    for standard, fd in enumerate(streams):
        os.dup2(fd, standard)
    os.closerange(3, 1 << 16)
    os.chdir(asked["cwd"])
    os.umask(asked["umask"])
    os.environ.clear()
    os.environ.update(SET_BY_IMPORTS | asked["environ"])
    time.tzset()
    if program == "thawd --aws":
        _keep_emulator_ready()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard in ("stdin", "stdout", "stderr"):
        _open_again(standard)
    sys.argv = [script or module, *asked["arguments"]]
    sys.path[0:0] = [str(Path(script).parent) if script else asked["cwd"]]
    try:
        for name in (module, module + ".__main__"):
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        _finish()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 130
    except BaseException:
        traceback.print_exc()
        status = 1
    _finish()
    return status & 0xFF


def _keep_emulator_ready() -> None:
    """Fork a process that becomes the emulator when this process starts that program for the first time."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        own.close()
        asked, streams, _, _ = socket.recv_fds(theirs, _LONGEST_BYTES, 3)
        if not asked:  # the server has ended without it
            os._exit(0)
        os.setsid()
        theirs.send(b"started")
        os._exit(run_here(EMULATOR, json.loads(asked), streams))
    theirs.close()
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def start(self: Any, *arguments: Any) -> None:
        given = inspect.signature(execute).bind(self, *arguments).arguments
        if own.fileno() == -1 or _program_of(given["args"], None) != EMULATOR:
            execute(self, *arguments)
            return
        with own:
            _ask(
                own,
                EMULATOR,
                list(given["args"])[3:],
                given["cwd"],
                given["env"],
                [given["p2cread"], given["c2pwrite"], 2],
            )
            assert own.recv(64), "the process that waits for the emulator's start has ended"
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(*(given[name] for name in _PIPES))

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


def _open_again(name: str) -> None:
    """Open a new standard stream, without data that the forked process left in the old one."""
    fd = ("stdin", "stdout", "stderr").index(name)
    mode = "r" if fd == 0 else "w"
    errors = "backslashreplace" if fd == 2 else None
    is_terminal = mode == "w" and os.isatty(fd)
    stream = open(fd, mode, errors=errors, buffering=1 if is_terminal else -1, closefd=False)  # noqa: SIM115 - kept
    if fd == 2:
        stream.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
    setattr(sys, name, stream)


def _finish() -> None:
    """Do what the interpreter does when it exits."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
