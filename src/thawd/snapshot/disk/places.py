"""The places where Lambda has code, runtime and layers: ``/var/task``, ``/var/runtime`` and ``/opt``.

thawd-thaw mounts the real folders there, read-only, in the mount namespace that also gives a process its own ``/tmp``.
All functions then see their code at the same path. So a file's path alone does not identify it: outside such a process,
thawd uses the real path.

Source: AWS Lambda developer guide, "Working with layers", "Defined runtime environment variables".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TASK = Path("/var/task")
RUNTIME = Path("/var/runtime")
OPT = Path("/opt")
TMP = Path("/tmp")


@dataclass(frozen=True, slots=True)
class Places:
    """What the processes of one version see at Lambda's paths.

    Attributes:
        code: folder of the code (a text, because a `Path` takes more memory), seen at ``/var/task``.
        runtime: folder of the runtime, seen at ``/var/runtime``.
        layers: folder with the files of all layers, seen at ``/opt``; None: the machine's ``/opt`` stays visible.
    """

    code: str
    runtime: Path
    layers: Path | None = None

    @property
    def options(self) -> list[str]:
        """Options for thawd-thaw's command line."""
        opt = [] if self.layers is None else ["--disk-opt", str(self.layers)]
        return ["--disk-task", self.code, "--disk-runtime", str(self.runtime), *opt]

    def seen(self, path: Path) -> Path:
        """The path at which a process sees a file of the code or the layers; other paths stay as they are."""
        if path.is_relative_to(self.code):
            return TASK / path.relative_to(self.code)
        if self.layers is not None and path.is_relative_to(self.layers):
            return OPT / path.relative_to(self.layers)
        return path

    def real(self, path: Path) -> Path:
        """The file that a process sees at `path`; the opposite of `seen`, for the runtime's files, too."""
        for place, folder in ((TASK, Path(self.code)), (RUNTIME, self.runtime), (OPT, self.layers)):
            if folder is not None and path.is_relative_to(place):
                return folder / path.relative_to(place)
        return path

    def hides(self, paths: Iterable[Path]) -> str | None:
        """Say which of `paths` the mounts would hide; None: none of them."""
        folders = (TASK, RUNTIME) if self.layers is None else (TASK, RUNTIME, OPT)
        for path in paths:
            for place in (path, path.resolve()):
                for folder in folders:
                    if folder in (place, *place.parents):
                        return f"{path} lies in {folder}"
        return None


def in_tmp(paths: Iterable[Path]) -> str | None:
    """Say which of `paths` is in ``/tmp``, where a process's own ``/tmp`` would hide it; None when none is."""
    for path in paths:
        for place in (path, path.resolve()):
            if TMP in (place, *place.parents):
                return f"{path} lies in {TMP}"
    return None


def make_mount_points() -> str | None:
    """Make those of the three folders that are missing; returns why that is not possible, or None."""
    for folder in (TASK, RUNTIME, OPT):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            return f"{folder} does not exist and cannot be made ({error.strerror}); make it as root: mkdir -p {folder}"
    return None
