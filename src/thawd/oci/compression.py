"""Reads layers that are compressed with gzip or zstd, or not compressed, recognised by their first bytes.

The media type of a layer is ignored, because some tools declare ``tar`` for compressed layers.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from thawd.errors import ImageError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = tuple(bytes((0x50 + n, 0x2A, 0x4D, 0x18)) for n in range(16))


class LayerStream:
    """The uncompressed content of a layer; `read` never returns less than requested before the end.

    Args:
        file: the decompressing file.
        what: names the layer in messages.
    """

    def __init__(self, file: Any, what: str) -> None:
        self._file = file
        self._what = what

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end. Raises ImageError if the compressed data is damaged."""
        parts: list[bytes] = []
        while size > 0:
            try:
                part = self._file.read(size)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ImageError(f"{self._what}: its compressed data is damaged: {error}") from None
            except Exception as error:
                if type(error).__name__ != "ZstdError":
                    raise
                raise ImageError(f"{self._what}: its compressed data is damaged: {error}") from None
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


@contextmanager
def decompressed(file: IO[bytes], what: str) -> Iterator[LayerStream]:
    """Yield the uncompressed content of a layer.

    Args:
        file: the layer, opened for reading at its start, with a position that can be set.
        what: names the layer in messages.

    Raises:
        ImageError: the layer is compressed with zstd, and the library for it is not installed.
    """
    start = file.read(4)
    file.seek(0)
    if start.startswith(_GZIP):
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            yield LayerStream(io.BufferedReader(unpacked, 1 << 18), what)
    elif start == _ZSTD or start in _SKIPPABLE:
        try:
            import zstandard
        except ImportError:
            raise ImageError(f"{what} is compressed with zstd: pip install 'thawd[images]'") from None
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False) as reader:
            yield LayerStream(reader, what)
    else:
        yield LayerStream(file, what)
