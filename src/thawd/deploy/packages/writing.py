"""Writes the archives of planned functions into a folder: layers and parts first, then the functions' zip files."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from thawd.deploy.packages.archives import write, write_tar, write_zip
from thawd.deploy.packages.contents import Item
from thawd.deploy.packages.layering import PYTHON_FOLDER, Layer
from thawd.deploy.packages.planning import FunctionPlan, Plan
from thawd.deploy.packages.preparing import Prepared
from thawd.deploy.packages.targets import Limits, PackageError

_LOADER = Path(__file__).with_name("thawd_parts.py")
_MANIFEST = "thawd_parts.json"
_DIGITS = 16
OF_A_DIGEST = re.compile(rf"(?:layer|part)-[0-9a-f]{{{_DIGITS}}}\.(?:zip|tar\.gz)")
"""Names of layers and parts."""
_FILE = stat.S_IFREG | 0o644


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """A finished archive.

    Attributes:
        file: name in the output folder.
        size_bytes: size of the file.
        unpacked_bytes: size of the files in it.
        sha256: digest of the file, 64 hexadecimal digits.
        direct: whether it may be in a request to Lambda; if not, it must be in S3.
    """

    file: str
    size_bytes: int
    unpacked_bytes: int
    sha256: str
    direct: bool


def part_key(function: str) -> str:
    """Return the key of a split function's part among the files; no function has such a name."""
    return f"{function} part"


def write_all(
    plan: Plan, prepared: Sequence[Prepared], folder: Path, *, parts_url: str, limits: Limits
) -> dict[str, ArchiveFile]:
    """Write all archives of a plan, and return them by the name of the function or layer, or by `part_key`. Blocks.

    Args:
        plan: the plan.
        prepared: the functions, in the order of the plan.
        folder: an empty folder.
        parts_url: where the parts will be; may be empty.
        limits: Lambda's limits.

    Raises:
        PackageError: two files would have the same path, or an archive is larger than Lambda allows.
        OSError: a file cannot be read or written.
    """
    by_name = {ready.function.name: ready for ready in prepared}
    files: dict[str, ArchiveFile] = {}
    parts: dict[tuple[str, ...], ArchiveFile] = {}
    for layer in plan.layers:
        files[layer.name] = _named(_layer_items(layer, by_name), folder, "layer", "zip", limits)
    for each in plan.functions:
        ready = by_name[each.function]
        if each.form == "image":
            continue
        items = [*ready.code, *(item for name in each.inside for item in ready.distributions[name].items)]
        if each.part:
            moved = [item for name in each.part for item in ready.distributions[name].items]
            digests = tuple(piece.digest for piece in ready.contents.pieces if piece.name in each.part)
            if digests not in parts:  # functions with equal parts share the file
                parts[digests] = _named(moved, folder, "part", "tar.gz", limits)
            part = files[part_key(each.function)] = parts[digests]
            items += _loader(ready, part, parts_url)
        _check(each, items, limits)
        path = folder / f"{each.function}.zip"
        size_bytes, sha256 = write(path, items, write_zip)
        files[each.function] = ArchiveFile(
            file=path.name,
            size_bytes=size_bytes,
            unpacked_bytes=sum(item.size_bytes for item in items),
            sha256=sha256,
            direct=size_bytes <= limits.direct_bytes,
        )
    return files


def _layer_items(layer: Layer, by_name: Mapping[str, Prepared]) -> list[Item]:
    ready = by_name[layer.functions[0]]
    return [item.moved(PYTHON_FOLDER) for name in layer.distributions for item in ready.distributions[name].items]


def _named(items: Sequence[Item], folder: Path, prefix: str, suffix: str, limits: Limits) -> ArchiveFile:
    """Write an archive that has its digest in its name."""
    temporary = folder / f"{prefix}.{suffix}"
    size_bytes, sha256 = write(temporary, items, write_zip if suffix == "zip" else write_tar)
    path = folder / f"{prefix}-{sha256[:_DIGITS]}.{suffix}"
    temporary.rename(path)
    return ArchiveFile(
        file=path.name,
        size_bytes=size_bytes,
        unpacked_bytes=sum(item.size_bytes for item in items),
        sha256=sha256,
        direct=suffix == "zip" and size_bytes <= limits.direct_bytes,
    )


def _loader(ready: Prepared, part: ArchiveFile, parts_url: str) -> list[Item]:
    manifest = {
        "handler": ready.function.handler,
        "parts": [{"file": part.file, "sha256": part.sha256}],
        "url": parts_url,
    }
    content = json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"
    loader = Item(path=_LOADER.name, source=_LOADER, size_bytes=_LOADER.stat().st_size, mode=_FILE)
    return [loader, Item(path=_MANIFEST, source=_LOADER, size_bytes=len(content), mode=_FILE, content=content)]


def _check(each: FunctionPlan, items: Sequence[Item], limits: Limits) -> None:
    """Check that a zip file can be unpacked, and is small enough.

    Raises:
        PackageError: two items have the same path, or one is a file where another needs a folder; or it is too large.
    """
    paths: set[str] = set()
    for item in items:
        if item.path in paths:
            raise PackageError(
                f"functions.{each.function}: two files would be {item.path} in the package, for example one in the "
                "code folder and one of a requirement; rename or remove the one in the code folder"
            )
        paths.add(item.path)
    for path in paths:
        parent = os.path.dirname(path)  # noqa: PTH120 - paths of archives
        while parent:
            if parent in paths:
                raise PackageError(
                    f"functions.{each.function}: {parent} would be a file and a folder in the package; rename or "
                    "remove the one in the code folder"
                )
            parent = os.path.dirname(parent)  # noqa: PTH120
    size = sum(item.size_bytes for item in items)
    if size >= limits.unpacked_bytes:
        raise PackageError(
            f"functions.{each.function}: {size:,} bytes unpacked; fewer than {limits.unpacked_bytes:,} allowed"
        )
