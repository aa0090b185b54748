"""Makes virtual environments from requirements files, and keeps each for the next use.

A virtual environment is made once for each combination of requirements (the files' contents), interpreter and platform.
The first process that needs the virtual environment makes it, and other processes wait. Its marker file is written
last: a virtual environment without a marker is incomplete and is removed. It is made in its final folder, because
virtual environments cannot be moved. One that was received with the snapshot of a function is for that function;
other functions get another folder (`thawd.stores.received_folders`).

uv installs the packages if it can, with the settings that the user has made for pip (`thawd.publishing.uv`). If uv
lacks one of these settings or fails, pip installs them. So a failure is reported with pip's message.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from thawd.errors import EnvironmentBuildError
from thawd.publishing.requirement_files import contents, wants_hashes, why_pip
from thawd.publishing.uv import uv_settings
from thawd.stores import received_folders
from thawd.stores.received_folders import COMPLETE

_DISCARDED = ".old-"
_LOOK_AGAIN_S = 0.1
_TAIL_LINES = 20
_LONGEST_LINE_BYTES = 1 << 16
# Lines of pip about itself and about the user who runs it. If an installation fails, its report contains them.
_NOISE = ("WARNING: Running pip as", "WARNING: Location ", "WARNING: There was an error checking", "[notice]")
_PIP_INSTALL = ("--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off")
_UV_INSTALL = (
    *("pip", "install", "--no-config", "--no-python-downloads", "--no-progress", "--color", "never"),
    # As with pip, choose the best version in all indexes, not the best in the first index that has the package.
    *("--index-strategy", "unsafe-best-match"),
    # With hard links, a function that writes into its packages would change the cache and all other virtual
    # environments. Copies share their blocks on file systems that support it (copy_file_range(2)).
    *("--link-mode", "copy"),
    # Compile to byte code, as pip does. Functions often have no permission to write into their virtual environment, and
    # would otherwise compile the packages' source files at each cold start.
    "--compile-bytecode",
)


@dataclass(frozen=True, slots=True)
class Installers:
    """The programs that install, and their settings.

    Attributes:
        environ: environment variables for pip and uv; None: those of this process.
        uv: the uv program; None: pip installs.
        function: the function that the virtual environment is for; empty: none, so no received one is used.
    """

    environ: Mapping[str, str] | None = None
    uv: Path | None = None
    function: str = ""


class Installation:
    """One requirements file installed for one interpreter.

    Args:
        requirements: the requirements file, an absolute path.
        python: the interpreter.
        label: the interpreter's version and path, for messages; another label leads to another virtual environment.
        root: folder of all virtual environments.
        on_line: called with each line of progress.
        installers: the programs that install.

    Raises:
        EnvironmentBuildError: the requirements file cannot be read.
    """

    def __init__(
        self,
        requirements: Path,
        *,
        python: Path,
        label: str,
        root: Path,
        on_line: Callable[[str], None],
        installers: Installers,
    ) -> None:
        self._requirements = requirements
        self._base = python
        self._label = label
        self._root = root
        self._on_line = on_line
        self._environ = os.environ if installers.environ is None else installers.environ
        self._uv = installers.uv
        self._function = installers.function
        self._fingerprint = self._compute_fingerprint()
        self._place(self._fingerprint)

    async def ready(self) -> Path:
        """Return the virtual environment's interpreter. The virtual environment is made if it is missing.

        Raises:
            EnvironmentBuildError: the virtual environment cannot be made.
        """
        if self._is_of_others():
            self._place(hashlib.sha256(f"apart {self._folder.name}".encode()).hexdigest())
        if self._is_complete():
            self._mark_used()
            return self._python
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            async with self._locked() as lock:
                # Another process may have made the virtual environment while this process waited.
                is_of_others = self._is_of_others()
                if not is_of_others and not self._is_complete():
                    await self._make(lock)
        except OSError as error:
            raise EnvironmentBuildError(
                f"The virtual environment for {self._requirements} cannot be made in {self._root}: "
                f"{error.strerror or error}. Check that the disk has free space and that thawd may write to the folder."
            ) from error
        return await self.ready() if is_of_others else self._python

    def _place(self, name: str) -> None:
        self._folder = self._root / name
        self._python = self._folder / "bin" / "python"

    def _is_of_others(self) -> bool:
        """Whether the folder came with snapshots of other functions, so that its contents may be any."""
        functions = received_folders.functions_of(self._folder)
        return functions is not None and self._function not in functions

    def _compute_fingerprint(self) -> str:
        digest = hashlib.sha256(b"thawd environment 1\n")
        for part in (self._label, sysconfig.get_platform(), *contents(self._requirements)):
            content = part.encode(errors="surrogateescape")
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.hexdigest()

    def _is_complete(self) -> bool:
        # Check the interpreter, too: it is a link, and the interpreter that it points to may have been removed.
        return (self._folder / COMPLETE).is_file() and os.access(self._python, os.X_OK)

    def _mark_used(self) -> None:
        with contextlib.suppress(OSError):  # in a read-only data folder, the virtual environment is still usable
            os.utime(self._folder / COMPLETE)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[int]:
        """Hold the virtual environment's lock, and yield its file descriptor.

        The installer inherits the descriptor. So if this process is killed, the lock is held until the installer ends,
        too, and no other process writes to the same folder at the same time.
        """
        lock = os.open(self._root / f"{self._folder.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            waiting = False
            while not _try_lock(lock):
                if not waiting:
                    self._on_line(f"waiting for another process that installs {self._requirements}")
                waiting = True
                # Poll, because a blocking call in a thread could not be cancelled.
                await asyncio.sleep(_LOOK_AGAIN_S)
            yield lock
        finally:
            # Unlock explicitly, because a process that an installation left behind may still have the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    async def _make(self, lock: int) -> None:
        await self._discard()
        self._on_line(f"making a virtual environment for {self._requirements} with {self._label}")
        try:
            if not await self._made_by_uv(lock):
                await self._make_by_pip(lock)
            # Without the sync, a power cut could leave the marker on the disk but lose installed files.
            await asyncio.to_thread(os.sync)
            self._mark_complete()
        except BaseException:
            await self._discard()
            raise

    async def _made_by_uv(self, lock: int) -> bool:
        """Try to make the virtual environment with uv. Return whether that succeeded; if not, no part of it is left."""
        if self._uv is None:
            return False
        settings = uv_settings(self._environ)
        if reason := settings.why_pip or why_pip(self._requirements):
            self._on_line(f"pip installs {self._requirements}: {reason}")
            return False
        hashes = ["--require-hashes"] if wants_hashes(self._requirements) else []
        command = [str(self._uv), *_UV_INSTALL, "--python", str(self._python), *settings.arguments, *hashes]
        try:
            await self._run([*self._venv(), "--without-pip"], "make a virtual environment", lock)
            await self._run(
                [*command, "-r", str(self._requirements)],
                f"install {self._requirements}",
                lock,
                variables=settings.variables,
            )
        except EnvironmentBuildError:
            self._on_line(f"uv could not install {self._requirements}; trying with pip")
            await self._discard()
            return False
        return True

    async def _make_by_pip(self, lock: int) -> None:
        await self._run(self._venv(), "make a virtual environment", lock)
        command = [str(self._python), "-I", "-m", "pip", *_PIP_INSTALL, "-r", str(self._requirements)]
        await self._run(command, f"install {self._requirements}", lock)

    def _venv(self) -> list[str]:
        return [str(self._base), "-I", "-m", "venv", str(self._folder)]

    def _mark_complete(self) -> None:
        if self._compute_fingerprint() != self._fingerprint:
            message = (
                f"{self._requirements} was changed while it was being installed. `thawd up --watch` publishes the "
                "function again by itself; otherwise send the server SIGHUP: kill -HUP PID."
            )
            raise EnvironmentBuildError(message)
        (self._folder / COMPLETE).write_text(f"{self._requirements}\n{self._label}\n")

    async def _run(
        self, command: Sequence[str], what: str, lock: int, *, variables: Mapping[str, str] | None = None
    ) -> None:
        """Run a program until it ends, and pass its output to `on_line`.

        Args:
            command: the program and its arguments.
            what: what the program is to do, for the error message.
            lock: file descriptor that the program inherits.
            variables: added to the program's environment variables.

        Raises:
            EnvironmentBuildError: the program could not be started, or failed.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # Relative paths in a requirements file begin at its folder.
                cwd=self._requirements.parent,
                env={**self._environ, **(variables or {})},
                pass_fds=(lock,),
                # The installer gets a process group of its own, so that its child processes can be killed, too.
                start_new_session=True,
            )
        except OSError as error:
            message = f"{self._label} could not {what}: {command[0]} cannot be started: {error.strerror}; reinstall it."
            raise EnvironmentBuildError(message) from error
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        try:
            assert process.stdout is not None
            async for line in _lines(process.stdout):
                tail.append(line)
                if not line.startswith(_NOISE):
                    self._on_line(line)
            status = await process.wait()
        finally:
            if process.returncode is None:
                _kill_group(process.pid)
                await process.wait()
        if status != 0:
            raise EnvironmentBuildError(self._failure(what, status, tail))

    def _failure(self, what: str, status: int, tail: Sequence[str]) -> str:
        output = "\n".join(f"    {line}" for line in tail)
        ended = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
        return (
            f"{self._label} could not {what}: it {ended}. Its last lines:\n{output}\n"
            "Correct the requirements file or choose another interpreter (`python` in thawd.toml). If the package "
            "index cannot be reached, configure pip, for example with PIP_INDEX_URL."
        )

    async def _discard(self) -> None:
        """Remove the virtual environment. Moving it aside first frees its path immediately, even if removing fails."""
        if self._folder.exists():
            aside = tempfile.mkdtemp(prefix=f"{_DISCARDED}{self._folder.name}-", dir=self._root)
            self._folder.rename(Path(aside) / "environment")
        # Also remove what earlier processes left behind, if they died before they had removed it.
        for old in self._root.glob(f"{_DISCARDED}{self._folder.name}-*"):
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)


def remove_unused(root: Path, used: Collection[str], *, unused_s: float) -> None:
    """Remove virtual environments that have not been used for `unused_s` seconds. Blocks.

    Args:
        root: folder of all virtual environments. If it is a symbolic link, nothing is removed: the folder belongs to
            another server, and this server does not know which virtual environments the other server uses.
        used: names of virtual environments to keep at any age.
        unused_s: how long a virtual environment is kept after its last use, seconds. Someone who returns to an older
            requirements file within this time need not wait for an installation.
    """
    for folder in () if root.is_symlink() else root.glob("[0-9a-f]*/"):
        marker = folder / COMPLETE
        try:
            age_s = time.time() - (marker if marker.exists() else folder).stat().st_mtime
            if folder.name in used or age_s < unused_s:
                continue
            lock = os.open(root / f"{folder.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        try:
            if _try_lock(lock):
                aside = Path(tempfile.mkdtemp(prefix=f"{_DISCARDED}{folder.name}-", dir=root))
                folder.rename(aside / "environment")
                shutil.rmtree(aside, ignore_errors=True)
        except OSError:
            continue
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the group has ended by itself


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines without line ends. Very long lines come in pieces; `StreamReader.readline` would refuse them."""
    rest = b""
    while chunk := await stream.read(_LONGEST_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()
