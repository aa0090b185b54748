"""Folders that are prepared for processes, the mounts that they need, and trials of these mounts on this machine."""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from thawd.errors import StoreError
from thawd.snapshot.disk.places import TMP, Places
from thawd.snapshot.disk.root_mounts import RootMounts
from thawd.snapshot.store.trust_and_locks import remove_tree, using

_TRIED = ".try-"
_TRY_S = 10.0
_NO_PROGRAM = "the program thawd-thaw is missing"


class MountKind(enum.Enum):
    """How a copy's own folder is mounted at the path of the frozen process's folder."""

    OVERLAY = "overlay"
    """An overlay over the stored files: a copy's folder holds only what the copy changes."""
    BIND = "bind"
    """A bind mount of a folder into which the stored files were copied."""
    NONE = "none"
    """This machine can do neither."""


@dataclass(frozen=True, slots=True)
class PreparedFolder:
    """A temporary folder prepared for one process, and the mounts that the process needs.

    Attributes:
        path: the folder's path in the process, the value of its ``TMPDIR``.
        at: where the folder must be mounted before the process uses it; None when no mount is needed.
        own: folder that only this process uses; None when no mount is needed.
        lower: folder with the initial contents, for an overlay; None when there is no overlay.
        tmp: a second path at which the folder is mounted, ``/tmp``; None when there is no second path.
        code: folder that is mounted read-only for the process; None when there is no such folder.
        places: what is mounted at Lambda's paths; None: nothing.
        root: the process's root; then `at` is a path in it. None: the process sees the machine's files.
    """

    path: Path
    at: Path | None = None
    own: Path | None = None
    lower: Path | None = None
    tmp: Path | None = None
    code: Path | None = None
    places: Places | None = None
    root: RootMounts | None = None

    @property
    def options(self) -> list[str]:
        """Options for thawd-thaw's command line, before the image; empty when nothing must be mounted."""
        named = {
            "--disk-at": self.at,
            "--disk-own": self.own,
            "--disk-lower": self.lower,
            "--disk-tmp": self.tmp,
            "--disk-code": self.code,
        }
        options = [text for option, path in named.items() if path is not None for text in (option, str(path))]
        for mounts in (self.places, self.root):
            options += [] if mounts is None else mounts.options
        return options


class MountTrials:
    """Tries mounts on this machine, with thawd-thaw. All methods block.

    Args:
        folder: folder for the trials' own folders.
        program: thawd-thaw; None when it is missing.
    """

    def __init__(self, folder: Path, program: Path | None) -> None:
        self._folder = folder
        self._program = program

    def own_tmp(self, *, as_on_lambda: bool = False) -> str | None:
        """Why a process cannot have its own ``/tmp``, or with `as_on_lambda` Lambda's paths; None if it can."""
        if self._program is None:
            return _NO_PROGRAM
        try:
            with self._trial() as trial:
                places = Places(str(trial), trial, trial) if as_on_lambda else None
                return self._try(PreparedFolder(trial, trial, trial, tmp=TMP, code=trial, places=places))
        except StoreError as error:
            return error.message

    def root(self, root: RootMounts) -> str | None:
        """Make what is missing in a root for its mounts. Returns why a process cannot have it, or None."""
        if self._program is None:
            return _NO_PROGRAM
        try:
            with self._trial() as trial:
                made = self._run(root.making_options)
                return made or self._try(PreparedFolder(TMP, at=TMP, own=trial, root=root))
        except StoreError as error:
            return error.message

    def mount_kind(self) -> tuple[MountKind, str]:
        """The best kind of mount that works on this machine, and why no better kind works."""
        if self._program is None:
            return MountKind.NONE, _NO_PROGRAM
        try:
            with self._trial() as trial:
                overlay = PreparedFolder(trial / "at", trial / "at", trial / "own", trial / "files")
                with using(trial):
                    for name in ("at", "files", "own"):
                        (trial / name).mkdir(mode=0o700)
                    make_layers(trial / "files", trial / "own")
                no_overlay = self._try(overlay)
                if no_overlay is None:
                    return MountKind.OVERLAY, ""
                no_bind = self._try(replace(overlay, lower=None))
        except StoreError as error:
            return MountKind.NONE, error.message
        return (MountKind.BIND, no_overlay) if no_bind is None else (MountKind.NONE, no_bind)

    @contextlib.contextmanager
    def _trial(self) -> Iterator[Path]:
        """A folder for one trial.

        Raises:
            StoreError: it cannot be made.
        """
        trial = self._folder / f"{_TRIED}{secrets.token_hex(8)}"
        try:
            with using(trial):
                trial.mkdir(mode=0o700)
            yield trial
        finally:
            remove_tree(trial)

    def _try(self, prepared: PreparedFolder) -> str | None:
        """Try the mounts of a prepared folder; returns the reason when they fail, None when they work."""
        return self._run(prepared.options)

    def _run(self, options: Sequence[str]) -> str | None:
        command = [str(self._program), *options, "--try", "disk", os.devnull]
        try:
            tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if tried.returncode == 0:
            return None
        lines = tried.stderr.decode(errors="replace").strip().splitlines()
        why = lines[0] if lines else f"{self._program} ended with status {tried.returncode}"
        return why.removeprefix("thawd: ").removeprefix("cannot thaw here: ")


def make_layers(files: Path, own: Path) -> None:
    """Make an overlay's folders ``upper`` and ``work``.

    A process sees the permissions and times of ``upper`` on the merged folder, so ``upper`` gets those of `files`.
    """
    status = files.stat()
    upper = own / "upper"
    upper.mkdir()
    upper.chmod(stat.S_IMODE(status.st_mode))
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
    (own / "work").mkdir()
