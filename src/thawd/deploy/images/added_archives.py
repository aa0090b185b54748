"""Unpacks the tar files that ADD names, with the checks that a layer of an image gets."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import IO, cast

from thawd.errors import ImageError
from thawd.oci import unpacking
from thawd.oci.merging import merge
from thawd.oci.tar_entries import UNREADABLE


def is_archive(path: Path) -> bool:
    """Return whether a file is a tar file, also compressed; its name does not matter."""
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, *UNREADABLE):
        return False


def unpack(path: Path, work: Path) -> Path:
    """Unpack a tar file into a new folder, and return the folder with its files.

    Args:
        path: the file.
        work: folder to make; the caller removes it.

    Raises:
        ImageError: the file is broken, or an entry would leave the folder (HTTP 400).
        OSError: the disk failed or is full.
    """
    work.mkdir(parents=True)
    plain = work / "plain.tar"
    try:
        with _opened(path) as source, plain.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ImageError(f"{path.name} is damaged: {error}") from None
    with plain.open("rb") as file:
        diff_id = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    unpacking.unpack(plain, work / "layer", diff_id=diff_id, what=path.name)
    merge([work / "layer"], work / "root", what=path.name)
    return work / "root"


def _opened(path: Path) -> IO[bytes]:
    """Open a file, uncompressed."""
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"\x1f\x8b":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if start == b"BZ":
        return bz2.open(path, "rb")
    return lzma.open(path, "rb") if start == b"\xfd7" else path.open("rb")
