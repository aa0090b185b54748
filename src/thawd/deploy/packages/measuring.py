"""Measures the sizes of functions' code and distributions, for the planner."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from thawd.deploy.packages.archives import LEVEL
from thawd.deploy.packages.contents import Item
from thawd.deploy.packages.distributions import Distribution
from thawd.deploy.packages.sizes import Piece

# Bytes that a zip file has for each file besides its content and, twice, its name; APPNOTE.TXT, 4.3.7 and 4.3.12.
_HEADERS_BYTES = 30 + 46
_DIGITS = 32


class Packer:
    """Measures the compressed size of files, by compressing them. The result is cached for each file."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int], int] = {}

    def packed_bytes(self, items: Sequence[Item]) -> int:
        """Return the size of a zip file with `items`, without its end record. Blocks, on all processors."""
        files = [item for item in items if item.is_file]
        missing = [item for item in files if (item.source, item.size_bytes) not in self._known]
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as threads:  # zlib works outside the GIL
            for item, size in zip(missing, threads.map(_deflated, missing), strict=True):
                self._known[item.source, item.size_bytes] = size
        content = sum(self._known[item.source, item.size_bytes] for item in files)
        for item in items:
            content += _HEADERS_BYTES + 2 * len(item.path.encode())
            if not item.is_file:  # the target of a link; or a folder, whose name ends with a slash
                content += 2 if item.content is None else len(item.content)
        return content


def _deflated(item: Item) -> int:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return sum(len(packer.compress(chunk)) for chunk in item.chunks()) + len(packer.flush())


def piece_of(distribution: Distribution, *, group: str, brought_by: tuple[str, ...], packer: Packer | None) -> Piece:
    """Return a distribution's sizes. Blocks.

    Args:
        distribution: the distribution.
        group: its group.
        brought_by: the chain of requirements that leads to it.
        packer: packs the files; None: the packed size is not measured.
    """
    return Piece(
        name=distribution.name,
        version=distribution.version,
        digest=_digest(distribution.items),
        files=len(distribution.items),
        unpacked_bytes=sum(item.size_bytes for item in distribution.items),
        packed_bytes=None if packer is None else packer.packed_bytes(distribution.items),
        group=group,
        brought_by=brought_by,
    )


def code_piece(items: Sequence[Item], packer: Packer | None) -> Piece:
    """Return the sizes of a function's code. Blocks."""
    return Piece(
        name="",
        files=len(items),
        unpacked_bytes=sum(item.size_bytes for item in items),
        packed_bytes=None if packer is None else packer.packed_bytes(items),
    )


def _digest(items: Iterable[Item]) -> str:
    """Return a digest of files and their bytes. The digests in a RECORD may be wrong; installers ignore them."""
    digest = hashlib.sha256(b"thawd distribution 2\n")
    for item in items:
        for part in (item.path.encode(), b"%o %d" % (item.mode, item.size_bytes)):
            digest.update(len(part).to_bytes(8, "big") + part)
        for chunk in item.chunks():
            digest.update(chunk)
    return digest.hexdigest()[:_DIGITS]
