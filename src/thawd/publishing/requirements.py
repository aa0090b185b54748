"""Virtual environments made from requirements files, each named by a digest of what the file asks for.

An environment is made once for each combination of requirements, interpreter and platform, by the process that needs
it first; other processes wait for it. It is complete when its marker is there, which is written last; one without a
marker is removed. It is made in its final place, as virtual environments cannot be moved. The environment's own pip
installs, so that the user's settings for pip apply.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from thawd.errors import EnvironmentBuildError

_MARKER = ".thawd-complete"
_DISCARDED = ".old-"
_LOOK_AGAIN_S = 0.1
_TAIL_LINES = 20
_LONGEST_LINE_BYTES = 1 << 16
_COMMENT = re.compile(r"(^|\s+)#.*$")
_REFERENCE = re.compile(r"(?:-r|-c|--requirement\b|--constraint\b)\s*=?\s*(\S.*)")
_EDITABLE = re.compile(r"(?:-e|--editable\b)\s*=?\s*")


class Installation:
    """One requirements file installed for one interpreter.

    Args:
        requirements: the file, absolute.
        python: the interpreter.
        label: the interpreter in words, with its version.
        root: folder of all environments.
        on_line: called with each line of progress.
        environ: environment variables for pip; None: those of this process.

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
        environ: Mapping[str, str] | None,
    ) -> None:
        self._requirements = requirements
        self._base = python
        self._label = label
        self._root = root
        self._on_line = on_line
        self._environ = environ
        self._fingerprint = self._digest()
        self._folder = root / self._fingerprint
        self._python = self._folder / "bin" / "python"

    async def ready(self) -> Path:
        """The environment's interpreter; the environment is made first where it is missing.

        Raises:
            EnvironmentBuildError: it cannot be made.
        """
        if self._is_complete():
            self._note_use()
            return self._python
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            async with self._locked() as lock:
                # Another process may have made it while this one waited.
                if not self._is_complete():
                    await self._make(lock)
        except OSError as error:
            raise EnvironmentBuildError(
                f"The environment for {self._requirements} cannot be made in {self._root}: "
                f"{error.strerror or error}; the data folder must have room, and thawd be allowed to write to it."
            ) from error
        return self._python

    def _digest(self) -> str:
        digest = hashlib.sha256(b"thawd environment 1\n")
        for part in (self._label, sysconfig.get_platform(), *_parts(self._requirements, seen=set())):
            content = part.encode(errors="surrogateescape")
            digest.update(len(content).to_bytes(8, "big") + content)
        return digest.hexdigest()

    def _is_complete(self) -> bool:
        # The interpreter is a link, whose target may have been removed from the machine.
        return (self._folder / _MARKER).is_file() and os.access(self._python, os.X_OK)

    def _note_use(self) -> None:
        with contextlib.suppress(OSError):  # a data folder that is only read still serves
            os.utime(self._folder / _MARKER)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[int]:
        """Hold the environment's lock; yields its file descriptor.

        pip inherits the descriptor. If this process is killed, the lock is held until its pip has ended, too: no other
        process writes to the environment until then.
        """
        lock = os.open(self._root / f"{self._fingerprint}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            waiting = False
            while not _try_lock(lock):
                if not waiting:
                    self._on_line(f"waiting for another process that installs {self._requirements}")
                waiting = True
                # Polled, as a blocking call in a thread could not be cancelled.
                await asyncio.sleep(_LOOK_AGAIN_S)
            yield lock
        finally:
            # Explicitly, as a process left behind by an installation may still have the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    async def _make(self, lock: int) -> None:
        await self._discard()
        self._on_line(f"making an environment for {self._requirements} with {self._label}")
        python, folder, requirements = str(self._python), str(self._folder), str(self._requirements)
        pip = [
            python,
            "-I",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "install",
            "--progress-bar",
            "off",
        ]
        try:
            await self._run([str(self._base), "-I", "-m", "venv", folder], "make a virtual environment", lock)
            await self._run([*pip, "-r", requirements], f"install {requirements}", lock)
            # Without this, a power cut could leave the marker on the disk, but not all installed files.
            await asyncio.to_thread(os.sync)
            self._mark_complete()
        except BaseException:
            await self._discard()
            raise

    def _mark_complete(self) -> None:
        if self._digest() != self._fingerprint:
            message = f"{self._requirements} was changed while it was being installed; publish again."
            raise EnvironmentBuildError(message)
        (self._folder / _MARKER).write_text(f"{self._requirements}\n{self._label}\n")

    async def _run(self, command: Sequence[str], what: str, lock: int) -> None:
        """Run a program to its end and pass its output on.

        Raises:
            EnvironmentBuildError: it failed; `what` it was to do is part of the message.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # Relative paths in a requirements file begin at its folder.
                cwd=self._requirements.parent,
                env=self._environ,
                pass_fds=(lock,),
                # A process group of its own, so that what pip starts can be killed with it.
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
            "Correct the requirements file or choose another interpreter (`python` in thawd.toml); if the network is "
            "at fault, set pip's own settings, such as PIP_INDEX_URL."
        )

    async def _discard(self) -> None:
        """Remove the environment; it is moved aside first, so that its place is free even if this process dies."""
        if self._folder.exists():
            aside = tempfile.mkdtemp(prefix=f"{_DISCARDED}{self._fingerprint}-", dir=self._root)
            self._folder.rename(Path(aside) / "environment")
        # Also those of processes that died at this point.
        for old in self._root.glob(f"{_DISCARDED}{self._fingerprint}-*"):
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)


def remove_unused(root: Path, used: Collection[str], *, unused_s: float) -> None:
    """Remove environments that have not been used for `unused_s` seconds. Blocking.

    Args:
        root: folder of all environments; a link leads to another server's, which removes its own.
        used: names of environments that stay, whatever their age.
        unused_s: environments used later than this stay, too: the one of an older requirements file is there when the
            user goes back to that file; seconds.
    """
    for folder in () if root.is_symlink() else root.glob("[0-9a-f]*/"):
        marker = folder / _MARKER
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
        pass  # It has ended by itself.


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines without their ends; very long ones in pieces, which `StreamReader.readline` would refuse."""
    rest = b""
    while chunk := await stream.read(_LONGEST_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()


def _parts(file: Path, *, seen: set[Path]) -> Iterator[str]:
    """What decides what is installed: the text of the file and of files it names, size and time of local archives.

    Archives can be gigabytes, so their contents do not count. The contents of local folders do not count either.

    Raises:
        EnvironmentBuildError: `file` cannot be read.
    """
    seen.add(file)
    try:
        text = file.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        message = f"The requirements file {file} cannot be read: {error.strerror}; correct its path or permissions."
        raise EnvironmentBuildError(message) from error
    yield text
    for line in text.replace("\\\n", "").splitlines():
        named = _COMMENT.sub("", line).strip()
        if not named:
            continue
        if named.startswith("-") or "/" in named:
            # A path relative to the file's folder means something else in another folder.
            yield str(file.parent)
        reference = _REFERENCE.fullmatch(named)
        path = file.parent / _unquoted(reference[1] if reference else _EDITABLE.sub("", named))
        # pip reports missing files: a path may hold a variable, or be no path at all.
        if not _is_file(path):
            continue
        if not reference:
            status = path.stat()
            yield f"{path} {status.st_size} {status.st_mtime_ns}"
        elif path not in seen:
            yield from _parts(path, seen=seen)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # Too long for a path, or in a folder that may not be entered.


def _unquoted(text: str) -> str:
    try:
        return " ".join(shlex.split(text))
    except ValueError:
        return text
