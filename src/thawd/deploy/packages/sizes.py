"""The planner's input: names and sizes of functions' code and of the distributions that they require."""

from __future__ import annotations

import msgspec

END_BYTES = 22
"""Size of the record at the end of a zip file. Source: APPNOTE.TXT, 4.3.16."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution, or a function's code.

    Attributes:
        name: name of the distribution; empty for code.
        version: version of the distribution.
        digest: identifies the files; equal for equal files. Empty for code.
        files: number of files.
        unpacked_bytes: sum of the files' sizes.
        packed_bytes: size in a zip file; None: not measured, because the function is too large for one.
        group: pieces of the same group must be in the same folder when the function runs.
        brought_by: the names that lead to it, from a requirement of the file to itself.
    """

    name: str
    version: str = ""
    digest: str = ""
    files: int = 0
    unpacked_bytes: int
    packed_bytes: int | None = None
    group: str = ""
    brought_by: tuple[str, ...] = ()


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one function's package.

    Attributes:
        function: name of the function.
        handler: its handler.
        runtime: Lambda's runtime identifier; None: the function declares another kind of program.
        architecture: ``x86_64`` or ``arm64``.
        code: its code.
        pieces: the distributions that it requires, by name.
        ephemeral_storage_mb: size of its ``/tmp``, MiB.
    """

    function: str
    handler: str
    runtime: str | None
    architecture: str
    code: Piece
    pieces: tuple[Piece, ...] = ()
    ephemeral_storage_mb: int = 512

    @property
    def unpacked_bytes(self) -> int:
        """Sum of the sizes of all files."""
        return self.code.unpacked_bytes + sum(piece.unpacked_bytes for piece in self.pieces)

    @property
    def packed_bytes(self) -> int | None:
        """Size of one zip file with everything; None: not measured."""
        sizes = [self.code.packed_bytes, *(piece.packed_bytes for piece in self.pieces)]
        return None if None in sizes else sum(size for size in sizes if size is not None)
