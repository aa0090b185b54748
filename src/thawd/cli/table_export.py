"""Exports a table's items as JSON lines, CSV or Parquet into a file. The file gets its name only when it is complete.

Memory use does not grow with the number of items. CSV and Parquet need the names of all columns before the first row,
so the rows are first written to a temporary file and read back from there. The table itself is read only once.
"""

from __future__ import annotations

import importlib.util
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from thawd.errors import StoreError
from thawd.system import folders

if TYPE_CHECKING:
    import pyarrow

FORMATS = ("jsonl", "csv", "parquet")
Row = dict[str, Any]

_BATCH_ROWS = 10_000
_BATCH_BYTES = 4 << 20
# A double-precision floating-point number represents every whole number up to this value exactly.
_MOST_EXACT = 1 << 53


def export(rows: Iterable[Row], output: Path, *, kind: str, key_name: str) -> int:
    """Write `rows` to the file `output`, which replaces an existing one, and return their number.

    Args:
        rows: the rows, each with its key in the field `key_name`.
        output: the file.
        kind: one of `FORMATS`.
        key_name: name of the field that every row has.

    Raises:
        StoreError: the library that writes Parquet is not installed, or `output` exists and is not a regular file.
        OSError: the file cannot be written; a file that existed is unchanged.
    """
    if kind == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise StoreError("Parquet needs pyarrow, which is not installed; install it with: pip install 'thawd[parquet]'")
    if output.exists() and not output.is_file():
        raise StoreError(f"{output} is not a regular file; name a new file, or a regular file, which is then replaced")
    folders.remove_unfinished(output.parent)
    with folders.replacing(output) as file:
        if kind == "jsonl":
            return write_json_lines(rows, file.write)
        with Spool(rows, folder=output.parent, key_name=key_name) as spool:
            if kind == "csv":
                write_csv(spool, file.write)
            else:
                _write_parquet(spool, file)
            return spool.count


def write_json_lines(rows: Iterable[Row], write: Callable[[bytes], object]) -> int:
    """Write each row as a JSON object on a line, in UTF-8, and return the number of rows."""
    count = 0
    for row in rows:
        # A lone surrogate is not valid Unicode, so it is written as JSON's escape for it.
        write((json.dumps(row, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))
        count += 1
    return count


def write_csv(spool: Spool, write: Callable[[bytes], object]) -> None:
    """Write CSV in UTF-8 with a header line; values other than text are written as JSON."""
    import csv

    line = io.StringIO()
    # csv's writer quotes a field if it contains a character of the line terminator. Readers take an unquoted \r for the
    # end of a line, so the terminator must contain \r. It is replaced by "\n" below, after the fields were quoted.
    writer = csv.writer(line, lineterminator="\r\n")
    columns = list(spool.columns)
    for cells in _cells(columns, spool):
        writer.writerow(cells)
        write((line.getvalue().removesuffix("\r\n") + "\n").encode(errors="backslashreplace"))
        line.seek(0)
        line.truncate()


def cell(value: Any) -> str:
    """Return the text of a cell: a text unchanged, None as an empty text, any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cells(columns: list[str], rows: Iterable[Row]) -> Iterator[list[str]]:
    yield columns
    for row in rows:
        yield [cell(row.get(name)) for name in columns]


class Spool:
    """Writes rows to a temporary file, from which they can be read repeatedly inside the ``with`` block.

    Attributes:
        columns: types of the values in each column, by its name, the key's column first.
        count: number of rows.
    """

    def __init__(self, rows: Iterable[Row], *, folder: Path | None = None, key_name: str) -> None:
        self.columns: dict[str, ColumnTypes] = {key_name: ColumnTypes()}
        self.count = 0
        self._rows = rows
        self._folder = folder
        self._file: IO[bytes]

    def __enter__(self) -> Spool:
        self._file = tempfile.TemporaryFile(dir=self._folder)
        try:
            for row in self._rows:
                for name, value in row.items():
                    self.columns.setdefault(name, ColumnTypes()).add(value)
                self._file.write(json.dumps(row).encode() + b"\n")
                self.count += 1
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Row]:
        return (row for batch in self.batches() for row in batch)

    def batches(self) -> Iterator[list[Row]]:
        """Yield the rows in lists of about 10,000 rows or 4 MiB, whichever is less."""
        self._file.seek(0)
        batch: list[Row] = []
        size = 0
        for line in self._file:
            batch.append(json.loads(line))
            size += len(line)
            if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


class ColumnTypes:
    """Types of the values in one column, from which the column's Parquet type is chosen."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, value: Any) -> None:
        """Record the type of one value."""
        if value is None:
            return
        if isinstance(value, bool):
            self._seen.add("bool")
        elif isinstance(value, int):
            exact = abs(value) <= _MOST_EXACT
            self._seen.add("int" if exact else "long" if -(1 << 63) <= value < 1 << 63 else "other")
        elif isinstance(value, float):
            self._seen.add("float")
        else:
            self._seen.add("text" if isinstance(value, str) else "other")

    @property
    def parquet(self) -> str:
        """The column's type in Parquet: ``bool``, ``int64``, ``double``, ``string``, or ``json`` for JSON as text."""
        for name, allowed in (
            ("string", {"text"}),  # also for a column without any value but null
            ("bool", {"bool"}),
            ("int64", {"int", "long"}),
            ("double", {"int", "float"}),
        ):
            if self._seen <= allowed:
                return name
        return "json"


def _write_parquet(spool: Spool, file: IO[bytes]) -> None:
    import pyarrow
    from pyarrow import parquet

    types = {name: kinds.parquet for name, kinds in spool.columns.items()}
    schema = pyarrow.schema([_field(name, kind) for name, kind in types.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in spool.batches():
            columns = [
                pyarrow.array([_value(row.get(name), kind) for row in batch], type=schema.field(at).type)
                for at, (name, kind) in enumerate(types.items())
            ]
            writer.write_batch(pyarrow.record_batch(columns, schema=schema))


def _field(name: str, kind: str) -> pyarrow.Field:
    import pyarrow

    types = {"bool": pyarrow.bool_(), "int64": pyarrow.int64(), "double": pyarrow.float64()}
    metadata = {"thawd": "json"} if kind == "json" else None
    return pyarrow.field(_unicode(name), types.get(kind, pyarrow.string()), metadata=metadata)


def _value(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return _unicode(json.dumps(value, ensure_ascii=False))
    return _unicode(value) if kind == "string" else value


def _unicode(text: str) -> str:
    """Return `text` with escapes in place of lone surrogates, which are not valid Unicode."""
    return text.encode(errors="backslashreplace").decode()
