"""Finds the program that runs a function over the Runtime API: Node with thawd's client, or a ``bootstrap``.

This happens when a version is published. The module decides which files are searched for, where, and which environment
variables a program gets. The only program that it starts is Node, to ask for Node's version.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thawd import __file__ as package_file
from thawd.errors import EnvironmentBuildError
from thawd.resources import NODE_RUNTIMES, PROVIDED_RUNTIMES, PYTHON_RUNTIMES, Function

NODE_FOLDER = Path(package_file).parent / "runtime_node"
_NODE_CLIENT = NODE_FOLDER / "bootstrap.mjs"
_BOOTSTRAP = "bootstrap"
_EXTENSIONS = "extensions"
_ANSWER_WITHIN_S = 10.0
_NODE_VERSION = re.compile(rb"v(\d+)\.(\d+)\.(\d+)\s*")
_HEAD_BYTES = 256
_OPT = "/opt"
_TASK = "/var/task"
WRAPPER = "AWS_LAMBDA_EXEC_WRAPPER"
"""The environment variable that names a wrapper: a program that gets the runtime's command line and executes it."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that speaks the Runtime API.

    Attributes:
        runtime: Lambda's name for the runtime, for example ``nodejs20.x``.
        argv: its command line.
        title: its name in ``INIT_START``, for example ``nodejs:20.20.2``.
        snap_start: whether the program may send ``restore/next``, the request whose answer lets it run its
            after-restore hooks.
        extensions: executables to start beside it, each with a different name.
        modules: npm folders with clients of AWS's SDK; searched after all folders of the function.
        why: why thawd's Python runtime does not run the function; empty if its runtime says that.
    """

    runtime: str
    argv: tuple[str, ...]
    title: str
    snap_start: bool
    extensions: tuple[Path, ...] = ()
    modules: tuple[Path, ...] = ()
    why: str = ""

    @property
    def path(self) -> Path:
        """The file that is executed."""
        return Path(self.argv[0])


def runs_a_program(function: Function) -> bool:
    """Return whether the function's environments execute Node or a ``bootstrap`` instead of thawd's Python runtime."""
    return function.runtime in NODE_RUNTIMES or function.runtime in PROVIDED_RUNTIMES


def python_of(function: Function, runtimes: Mapping[str, str]) -> str | None:
    """Return the interpreter of a Python function, as a path, command or version; None if the function names none.

    It is the function's ``python`` option, else the entry of `runtimes` for its runtime, else the version in the
    runtime's name.
    """
    if function.python is not None or function.runtime not in PYTHON_RUNTIMES:
        return function.python
    return runtimes.get(function.runtime, function.runtime.removeprefix("python"))


def check_program(function: Function, *, runtimes: Mapping[str, str], folder: Path, environ: Mapping[str, str]) -> None:
    """Check that this machine has a Node that the function can use. Other programs are part of the function's code.

    Raises:
        EnvironmentBuildError: this machine has no such Node.
    """
    if function.runtime in NODE_RUNTIMES:
        _node(function.runtime, runtimes.get(function.runtime), folder=folder, environ=environ)


def find_program(
    function: Function, *, roots: Sequence[Path], runtimes: Mapping[str, str], folder: Path, environ: Mapping[str, str]
) -> Program:
    """Return the program of a function whose runtime is Node or ``provided``. Blocks while Node reports its version.

    Args:
        function: as declared.
        roots: folder of the published code, then the folders of its layers (/opt on Lambda), in order.
        runtimes: paths and commands by runtime, as configured.
        folder: the folder of ``thawd.toml``; relative paths in `runtimes` begin there.
        environ: environment variables that say where to search, and with which programs are run.

    Raises:
        EnvironmentBuildError: no program works; the message names the programs that were searched, and the remedy.
    """
    runtime = function.runtime
    assert runtime is not None
    extensions = extensions_in(roots)
    if runtime in PROVIDED_RUNTIMES:
        argv = _bootstrap(function, roots, environ)
        return Program(runtime, argv, runtime, snap_start=True, extensions=extensions)
    node, version = _node(runtime, runtimes.get(runtime), folder=folder, environ=environ)
    argv = (*find_wrapper(function, roots=roots, environ=environ), str(node), str(_NODE_CLIENT))
    modules = _sdk_folders(node, environ)
    return Program(runtime, argv, f"nodejs:{version}", snap_start=False, extensions=extensions, modules=modules)


def variables_of_program(function: Function, program: Program, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a program's processes.

    Args:
        function: as declared.
        program: the program.
        variables: the variables that the function's processes would have if thawd's Python runtime ran it.

    Source: AWS Lambda developer guide, "Defined runtime environment variables": ``AWS_EXECUTION_ENV`` is not defined
    for OS-only runtimes, which are those with a ``bootstrap``.
    """
    if program.runtime in PYTHON_RUNTIMES:
        return dict(variables)
    made = {name: value for name, value in variables.items() if name != "AWS_EXECUTION_ENV"}
    if "ORT_DISABLE_TELEMETRY" not in function.environment:
        made.pop("ORT_DISABLE_TELEMETRY", None)
    if program.runtime in NODE_RUNTIMES:
        made["AWS_EXECUTION_ENV"] = f"AWS_Lambda_{program.runtime}"
        made["LAMBDA_RUNTIME_DIR"] = str(_NODE_CLIENT.parent)
        first = [made["NODE_PATH"]] if made.get("NODE_PATH") else []
        if first or program.modules:
            made["NODE_PATH"] = os.pathsep.join([*first, *map(str, program.modules)])
    else:
        made["LAMBDA_RUNTIME_DIR"] = variables["LAMBDA_TASK_ROOT"]
    return made


def extensions_in(roots: Sequence[Path]) -> tuple[Path, ...]:
    """Executable files in ``extensions/`` of the code and its layers; of files with the same name, the first."""
    found: dict[str, Path] = {}
    for root in roots:
        folder = root / _EXTENSIONS
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.is_file() and os.access(path, os.X_OK):
                found.setdefault(path.name, path)
    return tuple(found.values())


def _bootstrap(function: Function, roots: Sequence[Path], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line of a function that brings its own runtime, in its code or in a layer."""
    path = next((root / _BOOTSTRAP for root in roots if (root / _BOOTSTRAP).is_file()), roots[0] / _BOOTSTRAP)
    where = function.code / _BOOTSTRAP
    what = f'functions.{function.name}: the runtime "{function.runtime}" executes the file {where}'
    if not path.is_file():
        raise EnvironmentBuildError(
            f"{what}, but this file does not exist. Put the program, or a script that begins with #!, there under that "
            "name, or set another runtime."
        )
    return _command(path, what, shown=where, environ=environ)


def find_wrapper(function: Function, *, roots: Sequence[Path], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the wrapper's command line, which goes before that of the runtime; empty: the function has no wrapper.

    Args:
        function: as declared; its variable ``AWS_LAMBDA_EXEC_WRAPPER`` names the wrapper. ``/var/task`` means the
            code's folder and ``/opt`` the layers; a relative path is relative to the code's folder.
        roots: folder of the published code, then the folders of its layers, in order.
        environ: environment variables; ``PATH`` says where to search for bash.

    Raises:
        EnvironmentBuildError: the named file does not exist or cannot be executed.

    Source: AWS Lambda developer guide, "Modifying the runtime environment": OS-only runtimes have no wrapper scripts.
    """
    named = function.environment.get(WRAPPER)
    if not named or function.runtime in PROVIDED_RUNTIMES:
        return ()
    what = f"functions.{function.name}: {WRAPPER} names {named}"
    code, *layers = roots
    below = Path(named).relative_to(_OPT) if Path(named).is_relative_to(_OPT) else None
    places = [Path(str(code) + named.removeprefix(_TASK)) if named.startswith(f"{_TASK}/") else code / named]
    if below is not None:
        places = [*(layer / below for layer in reversed(layers)), *places]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise EnvironmentBuildError(
            f"{what}, but this file does not exist. /var/task means the function's code and /opt its layers: put the "
            "script there, or remove the variable."
        )
    return _command(path, what, shown=path, environ=environ)


def _command(path: Path, what: str, *, shown: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line that executes a file. Scripts for sh are executed by bash if the machine has it.

    Raises:
        EnvironmentBuildError: the file cannot be executed.
    """
    if not os.access(path, os.X_OK):
        raise EnvironmentBuildError(f"{what}, but the file is not executable. Make it executable: chmod +x {shown}")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"#!"):
        interpreter = head[2:].split(b"\n")[0].strip().split()
        if not interpreter or not os.access(interpreter[0], os.X_OK):
            named = f"{os.fsdecode(interpreter[0])}, which cannot be executed" if interpreter else "no interpreter"
            raise EnvironmentBuildError(
                f"{what}, but the file's first line names {named}. Name an interpreter of this machine, for example "
                "#!/bin/sh or #!/usr/bin/env python3."
            )
        return (*_bash_for(interpreter, environ), str(path))
    if not head.startswith(b"\x7fELF"):
        raise EnvironmentBuildError(
            f"{what}, but the file is neither an ELF program nor a script. The first line of a script begins with #!"
        )
    return (str(path),)


def _bash_for(interpreter: Sequence[bytes], environ: Mapping[str, str]) -> tuple[str, ...]:
    """bash and its options for a script whose first line names sh; empty for other scripts, or if there is no bash.

    On Amazon Linux, and so on Lambda, /bin/sh is bash: scripts for it may use bash syntax although they name sh.
    Source: bash(1), "INVOCATION": when invoked as sh, bash is in POSIX mode.
    """
    names_sh = interpreter[0] in (b"/bin/sh", b"/usr/bin/sh")
    options = interpreter[1:]
    if interpreter[0] == b"/usr/bin/env" and options[:1] == [b"sh"]:
        names_sh, options = True, options[1:]
    bash = next((str(one) for one in (Path("/bin/bash"), *_on_path("bash", environ)) if os.access(one, os.X_OK)), None)
    if not names_sh or bash is None:
        return ()
    return (bash, "--posix", *map(os.fsdecode, options))


def _node(runtime: str, configured: str | None, *, folder: Path, environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return the path of the Node for `runtime`, and its version."""
    major = re.sub(r"\D", "", runtime)
    candidates = _configured(configured, folder, environ) if configured else _installed(major, environ)
    tried: list[str] = []
    for candidate in dict.fromkeys(candidates):
        version = _version_of(candidate, folder, environ)
        if version is None:
            tried.append(f"{candidate} (it does not report its version)")
        elif configured or version.startswith(f"{major}."):
            return candidate, version
        else:
            tried.append(f"{candidate} (it is Node {version})")
    wanted = configured or f"node{major}, node or nodejs on PATH, and versions installed by nvm and fnm"
    raise EnvironmentBuildError(
        f'The runtime "{runtime}" needs Node {major}; looked for: {wanted}'
        f"{'; tried: ' + '; '.join(tried) if tried else '; found nothing'}. Install Node {major}, or set its path in "
        f'thawd.toml: [runtimes], "{runtime}" = "/path/to/node"; any version is accepted there.'
    )


def _sdk_folders(node: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders with AWS's SDK that npm installed globally: those in the server's ``NODE_PATH``, and npm's own.

    Source: npm-folders(5): ``{prefix}/lib/node_modules``, where Node is in ``{prefix}/bin``.
    """
    named = [Path(entry) for entry in environ.get("NODE_PATH", "").split(os.pathsep) if entry]
    prefixes = [node.parent.parent, node.resolve().parent.parent, Path("/usr/local"), Path("/usr")]
    folders = dict.fromkeys([*named, *(prefix / "lib" / "node_modules" for prefix in prefixes)])
    return tuple(folder for folder in folders if (folder / "@aws-sdk").is_dir())


def _configured(text: str, folder: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    if "/" not in text:
        yield from _on_path(text, environ)
        return
    if text.startswith("~/"):
        text = environ.get("HOME", "~") + text[1:]
    yield folder / text


def _installed(major: str, environ: Mapping[str, str]) -> Iterator[Path]:
    for command in (f"node{major}", "node", "nodejs"):
        yield from _on_path(command, environ)
    home = Path(environ.get("HOME") or "/nonexistent")
    nvm = Path(environ.get("NVM_DIR") or home / ".nvm") / "versions" / "node"
    fnm = Path(environ.get("FNM_DIR") or home / ".local" / "share" / "fnm") / "node-versions"
    yield from sorted(nvm.glob(f"v{major}.*/bin/node"), reverse=True)
    yield from sorted(fnm.glob(f"v{major}.*/installation/bin/node"), reverse=True)


def _on_path(command: str, environ: Mapping[str, str]) -> Iterator[Path]:
    for entry in environ.get("PATH", os.defpath).split(os.pathsep):
        candidate = Path(entry) / command
        if entry and candidate.is_file():
            yield candidate.absolute()


def _version_of(node: Path, folder: Path, environ: Mapping[str, str]) -> str | None:
    try:
        done = subprocess.run(
            [node, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=folder,
            env=environ,
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _NODE_VERSION.fullmatch(done.stdout)
    return None if version is None else b".".join(version.groups()).decode()
