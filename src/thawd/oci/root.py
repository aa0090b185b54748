"""A root: the folder that a function of an image runs in, with the image's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Root:
    """An image that is unpacked on this machine.

    Attributes:
        folder: the image's files. They are hard links to layers that other images share: never write to them. Two
            images with the same layers have the same folder.
        digest: digest of the image's manifest, such as ``sha256:6c3c...``.
        env: environment variables of the image.
        entrypoint: program and arguments of the image's ENTRYPOINT; may be empty.
        cmd: the image's CMD; may be empty.
        working_dir: absolute path in the image of the process's working folder.
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
