"""The contents of an image that arrives, with the identities of this machine's files in its tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from thawd.snapshot.inspect import layout
from thawd.snapshot.store.file_lists import FileRecord
from thawd.transfer.arriving_files import ArrivingFile
from thawd.transfer.chunk_format import ChunkError
from thawd.transfer.receiving import bind_image

_MOST_TABLES_BYTES = 64 << 20


class ArrivingImage:
    """An image whose tables are there, and checked, and whose pages arrive.

    Args:
        file: the contents as they were sent.
        records: the files of this machine that the image depends on.
        folder: for a temporary file.
        check: called with a file that has the tables, but not the pages; raises an error if the image must not be used.

    Raises:
        ChunkError: the tables are damaged (HTTP 500).
        OSError: they cannot be had.
    """

    def __init__(
        self,
        file: ArrivingFile,
        records: Sequence[FileRecord],
        *,
        folder: Path,
        check: Callable[[Path], object] = lambda tables: None,
    ) -> None:
        self._file = file
        head = file.read(0, layout.size_of("image_header"))
        end = int(layout.unpack("image_header", head)["data_offset"])
        if not layout.PAGE_BYTES <= end <= min(file.size, _MOST_TABLES_BYTES):
            raise ChunkError("the received image's tables are damaged")
        copy = folder / "tables"
        with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as written:
            written.write(file.read(0, end))
            written.truncate(file.size)
        check(copy)
        bind_image(copy, records)
        with copy.open("rb") as bound:
            self._tables = bound.read(end)
        copy.unlink()

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes, and wait until they are there; fewer at the end of the file.

        Raises:
            OSError: they cannot be had (EIO).
        """
        end = len(self._tables)
        if offset + size <= end:
            return self._tables[offset : offset + size]
        if offset >= end:
            return self._file.read(offset, size)
        return self._tables[offset:] + self._file.read(end, offset + size - end)
