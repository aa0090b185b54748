"""Blobs: files named by the SHA-256 of their content. The digest is verified before a file gets its name.

    blobs/sha256/HEX     a read-only file; complete, and on the disk, before it has this name

The folder has the form of the blobs in an OCI image layout. A blob is written under a temporary name, so a process that
is killed leaves no incomplete blob. If two processes write the same blob, the second replaces it by the same bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from thawd.errors import ImageError
from thawd.oci.documents import LARGEST_DOCUMENT_BYTES, checked_digest
from thawd.system import folders

CHUNK_BYTES = 1 << 20
NEW = ".new-"
"""Names of blobs that have no digest yet begin so; after a kill, `Images.collect` removes them."""


class Blobs:
    """The blobs of a store.

    Args:
        folder: the store's folder; made if missing when a blob is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "blobs" / "sha256"

    def path(self, digest: str) -> Path:
        """Return the file of a blob, whether or not it exists.

        Raises ImageError if `digest` is not a SHA-256 digest.
        """
        return self.folder / checked_digest(digest).removeprefix("sha256:")

    def has(self, digest: str) -> bool:
        """Return whether the store has this blob."""
        return self.path(digest).is_file()

    def open(self, digest: str) -> IO[bytes]:
        """Open a blob. Raises ImageError if the store does not have it."""
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError:
            raise ImageError(f"the blob {digest} is not in {self.folder}; get the image again") from None

    def read(self, digest: str) -> bytes:
        """Return the content of a small blob: a manifest, index or configuration.

        Raises:
            ImageError: the store does not have it, or it is larger than such a document may be.
        """
        with self.open(digest) as file:
            content = file.read(LARGEST_DOCUMENT_BYTES + 1)
        if len(content) > LARGEST_DOCUMENT_BYTES:
            raise ImageError(f"the document {digest} is larger than {LARGEST_DOCUMENT_BYTES} bytes")
        return content

    def add(self, content: bytes) -> str:
        """Store a document that thawd has made, and return its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.store(digest, [content], size=len(content), what="a document")
        return digest

    def store(self, digest: str, chunks: Iterable[bytes], *, size: int | None, what: str) -> None:
        """Store a blob from outside. Nothing is stored unless its content has the digest and the size.

        Args:
            digest: the digest that the content must have.
            chunks: the content. Reading stops after the chunk that exceeds `size`.
            size: size of the content, bytes; None: unknown, not checked.
            what: the origin of the blob, for messages.

        Raises:
            ImageError: the content has another digest or size (HTTP 400).
            OSError: the disk failed or is full.
        """
        target = self.path(digest)
        hashed, length = hashlib.sha256(), 0
        folders.make(self.folder, mode=0o700)
        with folders.replacing(target) as file:
            for chunk in chunks:
                length += len(chunk)
                if size is not None and length > size:
                    raise ImageError(
                        f"{what}: the blob {digest} is longer than the {size} bytes that its manifest says"
                    )
                hashed.update(chunk)
                file.write(chunk)
            if size is not None and length < size:
                raise ImageError(f"{what}: the blob {digest} ends after {length} of {size} bytes")
            found = f"sha256:{hashed.hexdigest()}"
            if found != digest:
                raise ImageError(
                    f"{what}: the blob {digest} has other content, with the digest {found}; it is not used"
                )
            os.fchmod(file.fileno(), 0o444)

    def add_written(self, write: Callable[[HashingFile], None]) -> tuple[str, int]:
        """Store a blob whose digest is known only after it has been written.

        Args:
            write: writes the content.

        Returns:
            Digest and size in bytes.

        Raises:
            OSError: the disk failed or is full.
        """
        folders.make(self.folder, mode=0o700)
        # `replacing` gives the file a name that was known before. The blob gets its own name from there.
        finished = self.folder / f"{NEW}{os.urandom(16).hex()}"
        try:
            with folders.replacing(finished) as file:
                hashing = HashingFile(file)
                write(hashing)
                os.fchmod(file.fileno(), 0o444)
            finished.replace(self.path(hashing.digest))
        finally:
            finished.unlink(missing_ok=True)
        folders.sync(self.folder)
        return hashing.digest, hashing.size


class HashingFile:
    """A file that is written from its start to its end, and hashes what is written.

    Attributes:
        size: bytes written so far.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hashed = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> int:
        """Append `content`."""
        self._hashed.update(content)
        self.size += len(content)
        return self._file.write(content)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    @property
    def digest(self) -> str:
        """Digest of what was written so far."""
        return f"sha256:{self._hashed.hexdigest()}"


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file in chunks."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
