"""The root of a container image's processes: the image's folder, and what thawd mounts in it.

thawd-thaw makes the folder the process's root, read-only, with the machine's ``/proc`` and a few devices in it, and the
process's own folder at ``/tmp``. What belongs to thawd is in ``/.thawd``, which no image uses: the runtime, the freeze
library, and the function's buckets. Everything else of the machine is out of reach.

Source: AWS Lambda developer guide, "Create a Lambda function using a container image", "Requirements for container
images": an image runs on a read-only file system, and may write to ``/tmp``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

OWN = Path("/.thawd")
PACKAGE = OWN / "thawd"
"""thawd's Python package, as a process in the root sees it."""
NATIVE = OWN / "native"
"""The folder with the freeze library."""
OUTBOX = OWN / "out"
"""The folder to which a process that is frozen writes its image."""
BUCKETS = OWN / "buckets"

_OF_THE_MACHINE = (Path("/proc"), Path("/sys"), Path("/dev"))
_MOST_LINKS = 40  # as many as Linux follows; path_resolution(7)


@dataclass(frozen=True, slots=True)
class RootMounts:
    """A root, and the folders that are mounted in it.

    Attributes:
        folder: the image's files.
        working_folder: the processes' working folder, a path in the root.
        read_only: folders of the machine by their paths in the root.
        writable: the same, for folders to which processes may write.
    """

    folder: Path
    working_folder: Path
    read_only: Mapping[Path, Path] = field(default_factory=dict)
    writable: Mapping[Path, Path] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        """Options for thawd-thaw's command line."""
        options = ["--root", str(self.folder), "--root-work", str(self.working_folder)]
        for option, folders in (("--root-bind", self.read_only), ("--root-share", self.writable)):
            for at, folder in folders.items():
                options += [option, f"{folder}={at}"]
        return options

    def real(self, path: Path) -> Path:
        """The file of this machine that a process in the root sees at an absolute path, with links followed.

        The path stays as it is if the machine's own files are there, or if it leads nowhere.
        """
        waiting = [*reversed(path.parts[1:])]
        at = Path("/")
        links = 0
        while waiting:
            part = waiting.pop()
            at = at.parent if part == ".." else at / part
            if at in _OF_THE_MACHINE:
                return path
            try:
                mode = self._of_machine(at).lstat().st_mode
                if not stat.S_ISLNK(mode):
                    continue
                target = Path(os.readlink(self._of_machine(at)))
            except OSError:
                return path
            if (links := links + 1) > _MOST_LINKS:
                return path
            waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at.parent
        return self._of_machine(at)

    def _of_machine(self, path: Path) -> Path:
        """The file of this machine at a path in the root that contains no links."""
        mounted = {**self.read_only, **self.writable}
        for at in sorted(mounted, key=lambda one: len(one.parts), reverse=True):
            if path.is_relative_to(at):
                return mounted[at] / path.relative_to(at)
        return self.folder / path.relative_to("/")

    @property
    def making_options(self) -> list[str]:
        """Options with which thawd-thaw only makes what is missing in the root for the mounts."""
        shares = {**self.writable, OUTBOX: self.folder}
        return [*RootMounts(self.folder, self.working_folder, self.read_only, shares).options, "--root-make"]
