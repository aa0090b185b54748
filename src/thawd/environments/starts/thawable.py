"""An image that can be thawed, and the error of a thaw that failed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from thawd.environments.child_processes import Child
from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError
from thawd.environments.starts.launcher import Start
from thawd.environments.starts.touched_pages import TouchedPages
from thawd.snapshot.disk.temporary_folders import DiskSnapshot

# Exit status of thawd-thaw when the image cannot be thawed on this machine, or a file that it refers to has changed.
CANNOT_THAW = 120
# Exit status of thawd-thaw when a stage of the thaw failed.
STAGE_FAILED = 121


class ThawFailedError(Exception):
    """A copy did not start. The message says why; it is thawd-thaw's own message if there is one.

    Attributes:
        cannot: whether this image can never be thawed on this machine.
        from_outside: whether something other than the platform killed the process.
    """

    def __init__(self, message: str, *, cannot: bool = False, from_outside: bool = False) -> None:
        super().__init__(message)
        self.cannot = cannot
        self.from_outside = from_outside


@dataclass(slots=True)
class Thawable:
    """An image and the program that thaws it.

    Attributes:
        program: thawd-thaw.
        image: the image.
        disk: the first content of a copy's temporary folder; None: the folder is empty.
        restore_ms: the shortest restore of this image so far, milliseconds; infinite before the first. A restore maps
            the memory and makes the threads; the copy's own repairs and hooks come after it.
        clocks_back: whether a copy may have clocks that are behind those of the freeze (`Function.snapshot_clocks`).
        touched: the pages that copies touch until their first answer.
        usable_s: when the image was made, after an init, ``time.monotonic()`` seconds; 0: before this server started.
        first_use: first byte and end of each part of the image that a copy touched until it had answered; empty: not
            known.
        image_fd: descriptor of the file that a copy maps, because the image still arrives; -1: it maps `image`.
        copies: the copies that map that file, as functions that end them and give a reason.
    """

    program: Path
    image: Path
    disk: DiskSnapshot | None = None
    restore_ms: float = math.inf
    usable_s: float = 0.0
    clocks_back: bool = False
    touched: TouchedPages = field(default_factory=TouchedPages)
    first_use: list[tuple[int, int]] = field(default_factory=list)
    image_fd: int = -1
    copies: dict[Child, Callable[[str], object]] = field(default_factory=dict)

    def command(self, role: str, start: Start, *arguments: str) -> list[str]:
        """Program and arguments for a copy. `role` says what the copy becomes.

        The roles are ``environment``, ``spare``, ``template`` and ``probe`` (see `thaw_template` in
        `thawd.environments.starts.thaw_fork_cold`). A copy of a base has the role ``base`` if it is to run init. With
        the argument ``compare``, it reports its state after init. A copy of a base that is to import packages has the
        role ``observe`` or ``packages``.
        """
        clocks = ("--clocks-back",) if self.clocks_back else ()
        image = str(self.image) if self.image_fd < 0 else f"/proc/self/fd/{self.image_fd}"
        return [str(self.program), *start.options, *clocks, image, role, *arguments]

    def follow(self, child: Child, environment: Environment | None = None) -> None:
        """Remember a copy that maps an image which still arrives, until the copy ends."""
        if self.image_fd < 0:
            return

        def end(why: str) -> None:
            if environment is not None:
                environment.end_because(why)
            child.kill()

        self.copies[child] = end
        child.ended.add_done_callback(lambda _: self.copies.pop(child, None))


def thaw_failed(error: InitError, child: Child, output: bytes) -> ThawFailedError:
    """Return the error for a copy that ended, from its exit status and the last line that thawd-thaw wrote."""
    status = child.ended.result() if child.ended.done() else None
    lines = output.decode(errors="replace").strip().splitlines()
    why = next((line for line in reversed(lines) if line.startswith("thawd: ")), "")
    message = why.removeprefix("thawd: ") or str(error)
    cannot = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == CANNOT_THAW
    return ThawFailedError(message, cannot=cannot, from_outside=error.from_outside)
