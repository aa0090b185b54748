"""Finds the Python interpreter of a function on this machine, and has the function's requirements installed for it.

This is the first step of building a version. Each interpreter is run once before it is used, because a command that
exists may still not work. The module `publishing.virtual_environments` does the installation.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thawd.config import NEWEST_PYTHON, OLDEST_PYTHON, process_environment
from thawd.errors import EnvironmentBuildError
from thawd.publishing.virtual_environments import Installation, Installers

_ANSWER_WITHIN_S = 10.0
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
# This code runs in the interpreter that is tried. If it fails in an old Python, that does no harm: such a Python is not
# supported and would be refused anyway.
_QUESTION = (
    "import sys; print('thawd:'); print(getattr(getattr(sys, 'implementation', None), 'name', '?'));"
    "print('.'.join(map(str, sys.version_info[:3]))); print(sys.executable)"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter that works.

    Attributes:
        path: absolute path of the program, inside the virtual environment if there is one.
        version: major, minor and micro version.
    """

    path: Path
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


class _UnusableError(Exception):
    """A program that was tried as an interpreter cannot run functions; the message says why."""


def find_interpreter(
    python: str | None, *, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> Interpreter:
    """Return the interpreter that a function's ``python`` option names.

    It runs programs and waits for them, so call it in a thread.

    Args:
        python: a version (``3.9``, ``3.9.18``), a command on ``PATH``, the path of an interpreter or of a virtual
            environment's folder; None: the interpreter that runs thawd.
        folder: folder where relative paths begin, that of ``thawd.toml``; None: the working folder.
        environ: environment variables for the search and for the programs it runs; None: those of this process.

    Raises:
        EnvironmentBuildError: no interpreter works and is supported; the message lists what was tried.
    """
    if python is None:
        return Interpreter(Path(sys.executable), sys.version_info[:3])
    search = _Search(python, folder=folder or Path.cwd(), environ=process_environment() if environ is None else environ)
    return search.first_usable()


async def prepare_environment(  # noqa: PLR0913
    requirements: Path,
    interpreter: Interpreter,
    root: Path,
    *,
    on_line: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
    uv: Path | None = None,
    function: str = "",
) -> Path:
    """Return the interpreter of a virtual environment with the packages of a requirements file, making it if missing.

    If the call is cancelled, it kills the processes it started and leaves no incomplete virtual environment.

    Args:
        requirements: the requirements file, an absolute path.
        interpreter: the interpreter to make the virtual environment from. If it belongs to a virtual environment, the
            packages installed there are not available in the new one.
        root: folder of all these virtual environments; made if missing.
        on_line: called with each line of progress.
        environ: environment variables for pip and uv; None: those of this process.
        uv: the uv program, which installs if it can; None: pip always installs.
        function: the function that the virtual environment is for; only such a function uses one that was received with
            its snapshot. Empty: none.

    Returns:
        Path of the virtual environment's interpreter.

    Raises:
        EnvironmentBuildError: the virtual environment cannot be made; the message contains the last lines of output and
            says what to do.
    """
    installation = Installation(
        requirements,
        python=interpreter.path,
        label=str(interpreter),
        root=root,
        on_line=on_line,
        installers=Installers(environ, uv, function),
    )
    return await installation.ready()


class _Search:
    """One search for an interpreter.

    Args:
        python: the ``python`` option.
        folder: folder where relative paths begin.
        environ: environment variables.
    """

    def __init__(self, python: str, *, folder: Path, environ: Mapping[str, str]) -> None:
        self._python = python
        self._folder = folder
        self._environ = environ
        self._home = Path(environ.get("HOME") or "/nonexistent")
        version = _VERSION.fullmatch(python)
        self._wanted = tuple(int(part) for part in version.groups() if part) if version else ()

    def first_usable(self) -> Interpreter:
        tried: list[str] = []
        for candidate in dict.fromkeys(self._candidates()):
            try:
                return self._ask(candidate)
            except _UnusableError as error:
                tried.append(f"{candidate} ({error})")
        raise EnvironmentBuildError(self._failure(tried))

    def _failure(self, tried: list[str]) -> str:
        if self._wanted:
            what = f"Python {self._python} cannot be used" if tried else f"Python {self._python} was not found"
        elif self._is_path():
            what = f"The interpreter {self._python} cannot be used"
        else:
            what = f'The command "{self._python}" cannot be used' if tried else f'"{self._python}" is not on PATH'
        if tried:
            what += f"; tried: {'; '.join(tried)}"
        version = self._python if OLDEST_PYTHON <= self._wanted[:2] <= NEWEST_PYTHON else "3.12"
        return (
            f"{what}. Install one from Python {_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)} (for example with "
            f"`uv python install {version}` or `pyenv install {version}`), "
            'or set python = "/path/to/python" for the function in thawd.toml.'
        )

    def _candidates(self) -> Iterator[Path]:
        if not self._wanted:
            yield from self._paths() if self._is_path() else self._on_path(self._python)
            return
        minor = _dotted(self._wanted[:2])
        name = f"python{minor}"
        yield from self._on_path(name)
        pyenv = Path(self._environ.get("PYENV_ROOT") or self._home / ".pyenv")
        yield from _newest_first(pyenv / "versions", f"{minor}.*/bin/{name}")
        data = Path(self._environ.get("XDG_DATA_HOME") or self._home / ".local" / "share")
        uv = Path(self._environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
        yield from _newest_first(uv, f"cpython-{minor}[.-]*/bin/{name}")
        yield from _newest_first(Path("/usr/local/bin"), name)
        yield from _newest_first(Path("/usr/bin"), name)
        yield from _newest_first(Path("/opt/python"), f"*/bin/{name}")
        if sys.version_info[:2] == self._wanted[:2]:
            # The last resort is the Python that thawd runs with. If thawd runs in a virtual environment, this is the
            # Python from which that environment was made, and it lacks the packages of the environment.
            yield Path(sys.base_prefix) / "bin" / name

    def _on_path(self, command: str) -> Iterator[Path]:
        # Search every folder: the first match may be a version manager's shim that does not work.
        for entry in self._environ.get("PATH", os.defpath).split(os.pathsep):
            candidate = self._folder / entry / command
            if entry and candidate.is_file():
                yield candidate

    def _is_path(self) -> bool:
        return "/" in self._python or self._python[:1] in (".", "~") or (self._folder / self._python).is_dir()

    def _paths(self) -> Iterator[Path]:
        text = self._python
        if text == "~" or text.startswith("~/"):
            text = str(self._home) + text[1:]
        path = Path(os.path.normpath(self._folder / text))
        if not path.is_dir():
            yield path
            return
        yield path / "bin" / "python"
        yield path / "bin" / "python3"

    def _ask(self, candidate: Path) -> Interpreter:
        """Run a program and check that it is an interpreter of the wanted version.

        Raises:
            _UnusableError: it is not such an interpreter, or does not work.
        """
        implementation, version, executable = self._answer(candidate)
        if implementation != "cpython":
            raise _UnusableError(f"it is {implementation}, not CPython")
        if not OLDEST_PYTHON <= version[:2] <= NEWEST_PYTHON:
            raise _UnusableError(
                f"it is Python {_dotted(version)}; {_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)} are supported"
            )
        if version[: len(self._wanted)] != self._wanted:
            raise _UnusableError(f"it is Python {_dotted(version)}")
        # A version manager's shim on PATH starts a shell at each run, so use the interpreter that the shim starts. But
        # if the user configured a path, use that path: the program there may prepare something that the interpreter
        # needs.
        leads_to = Path(executable)
        if not self._is_path() and leads_to.is_absolute() and leads_to.is_file():
            candidate = leads_to
        return Interpreter(candidate, version)

    def _answer(self, candidate: Path) -> tuple[str, tuple[int, int, int], str]:
        try:
            done = subprocess.run(
                # -I and -S: isolated and without site, so that the user's variables and packages cannot change the
                # answer.
                [candidate, "-I", "-S", "-c", _QUESTION],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=self._folder,
                env=self._environ,
                timeout=_ANSWER_WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _UnusableError(f"no answer within {_ANSWER_WITHIN_S:g} s") from None
        except OSError as error:
            raise _UnusableError(error.strerror or str(error)) from None
        return _read_answer(done)


def _read_answer(done: subprocess.CompletedProcess[bytes]) -> tuple[str, tuple[int, int, int], str]:
    """Implementation, version and path that an interpreter has printed.

    Raises:
        _UnusableError: it has printed something else.
    """
    output = done.stdout.decode(errors="replace")
    answer = re.fullmatch(r"thawd:\n(.+)\n(\d+)\.(\d+)\.(\d+)\n(.*)\n", output)
    if answer is None:
        said = done.stderr.decode(errors="replace").strip() or output.strip() or "it printed nothing"
        raise _UnusableError(f"status {done.returncode}: {said.splitlines()[0]}")
    return answer[1], (int(answer[2]), int(answer[3]), int(answer[4])), answer[5]


def ask_in_image(
    python: str, command: Sequence[str], variables: Mapping[str, str]
) -> tuple[tuple[int, int, int] | None, str]:
    """Ask the interpreter of a container image for its version. Blocks.

    Args:
        python: its path in the image.
        command: the command line that executes a program in the image's root; `python` is appended.
        variables: the image's environment variables.

    Returns:
        The version, and why thawd's runtime cannot run in the interpreter; one of them is None or empty.
    """
    try:
        done = subprocess.run(
            [*command, python, "-I", "-S", "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env=dict(variables),
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
        implementation, version, _ = _read_answer(done)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_ANSWER_WITHIN_S:g} s"
    except (OSError, _UnusableError) as error:
        return None, str(error)
    if implementation != "cpython":
        return None, f"it is {implementation}, not CPython"
    if not OLDEST_PYTHON <= version[:2] <= NEWEST_PYTHON:
        return None, f"it is Python {_dotted(version)}; thawd's runtime needs {_dotted(OLDEST_PYTHON)} or later"
    return version, ""


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    def numbers(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path.relative_to(folder)))]

    try:
        return sorted(folder.glob(pattern), key=numbers, reverse=True)
    except OSError:
        # Treat a folder that thawd has no permission to read as empty.
        return []


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
