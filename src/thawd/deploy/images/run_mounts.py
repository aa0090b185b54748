"""``RUN --mount``: folders whose contents are not kept (cache, tmpfs), and files of a folder or an image (bind).

Source: https://docs.docker.com/reference/dockerfile/#run---mount
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from thawd.errors import ImageError
from thawd.oci.layer_writing import NewEntry

_KINDS = ("bind", "cache", "tmpfs")
_KNOWN = {
    *("type", "target", "dst", "destination", "source", "src", "from", "ro", "readonly"),
    *("id", "sharing", "mode", "uid", "gid", "size"),
}


@dataclass(frozen=True, slots=True)
class RunMount:
    """One ``--mount``.

    Attributes:
        kind: ``bind``, ``cache`` or ``tmpfs``.
        target: absolute path in the image.
        source: for ``bind``, the mounted path; ``.``: the whole folder.
        image: for ``bind``, the stage or image with the source; None: the build's folder.
    """

    kind: str
    target: str
    source: str = "."
    image: str | None = None


def parse_mount(text: str, working_dir: str) -> RunMount:
    """Parse the value of a flag ``--mount``.

    Args:
        text: the value, such as ``type=cache,target=/var/cache/pip``.
        working_dir: the folder to which a relative target is relative.

    Raises:
        ImageError: the kind or a field is not supported, or the target is missing.
    """
    fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
    kind = fields.get("type", "bind")
    unknown = sorted(set(fields) - _KNOWN)
    if kind not in _KINDS or unknown:
        raise ImageError(f"--mount={text}: {unknown[0] if unknown else f'the type {kind}'} is not supported")
    target = fields.get("target") or fields.get("dst") or fields.get("destination")
    if not target:
        raise ImageError(f"--mount={text} has no target")
    source = fields.get("source") or fields.get("src") or "."
    if kind == "cache" and "from" in fields:
        raise ImageError(f"--mount={text}: a cache with contents (from) is not supported")
    absolute = os.path.normpath(str(Path("/", working_dir, target)))
    return RunMount(kind, absolute, source, fields.get("from"))


def write_tree(entries: Mapping[str, NewEntry], folder: Path) -> None:
    """Write entries as files below a new folder, for a mount. Files that a command writes into them are not kept.

    Raises:
        OSError: a file cannot be read, or the disk is full.
    """
    folder.mkdir()
    for path in sorted(entries):
        entry, target = entries[path], folder / path
        if entry.symlink is not None:
            target.symlink_to(entry.symlink)
        elif isinstance(entry.content, Path):
            shutil.copyfile(entry.content, target)
            target.chmod(entry.mode | 0o400)
        else:
            target.mkdir(exist_ok=True)
            target.chmod(entry.mode | 0o700)
