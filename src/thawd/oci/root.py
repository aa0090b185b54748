"""A root: an unpacked container image, as the folder in which its function runs, with the image's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Root:
    """A container image that is unpacked on this machine.

    Attributes:
        folder: the folder with the image's files. They are hard links to files of layers that other images share, so
            never write to them. Two images with the same layers have the same folder.
        digest: digest of the image's manifest, such as ``sha256:6c3c...``.
        env: environment variables of the image.
        entrypoint: program and arguments of the image's ENTRYPOINT; may be empty.
        cmd: the image's CMD; may be empty.
        working_dir: the process's working folder, as an absolute path in the image.
        user: the image's USER as it was declared; empty: not declared.
        architecture: processor architecture as Go names it, ``amd64`` or ``arm64``.
    """

    folder: Path
    digest: str
    env: dict[str, str]
    entrypoint: list[str]
    cmd: list[str]
    working_dir: str
    user: str
    architecture: str
