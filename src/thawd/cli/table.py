"""The verb ``thawd table``: a table's items on the terminal, or exported into a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thawd.cli.table_export import FORMATS, Row, Spool, export, write_csv, write_json_lines
from thawd.cli.terminal import item_row, print_text
from thawd.cli.verbs import config_option, fail, load
from thawd.errors import NothingStored, ThawdError

if TYPE_CHECKING:
    from thawd.resources import Table


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, UTF-8.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV, UTF-8, with a header line.")
@click.option("--format", "chosen", type=click.Choice(FORMATS), help="The same by name; parquet needs --output.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write into this file, which appears when it is complete."
)
@click.option("--key", help="Only the item with this key.")
@click.option("-n", "--limit", type=click.IntRange(1), help="At most so many items.")
@config_option
def table(  # noqa: PLR0913, PLR0917 - an option each
    name: str,
    as_json: bool,
    as_csv: bool,
    chosen: str | None,
    output: Path | None,
    key: str | None,
    limit: int | None,
    config_path: Path,
) -> None:
    """Print or export the items of the table NAME, by key; works whether thawd runs or not.

    An item's key stands first: in JSON and Parquet as the field `_key`, else as the column `key`. A field of the
    item's own with that name gets an underscore more: `_key` becomes `_key_` (and `_key_` becomes `_key__`), `key`
    becomes `key_`.

    Text shows line breaks and control characters escaped; JSON and CSV hold them as they are. Columns of a Parquet
    file are bool, int64, double or string where all their values are; else they hold JSON as text.
    """
    settings = load(config_path)
    if name not in settings.tables:
        fail(f"there is no table {name!r}; {config_path} has: {', '.join(settings.tables) or 'none'}")
    asked = [kind for kind, is_asked in (("jsonl", as_json), ("csv", as_csv), (chosen, chosen)) if is_asked]
    if len(asked) > 1:
        raise click.UsageError("--json, --csv and --format exclude each other")
    kind = asked[0] if asked else None
    if output is None and kind == "parquet":
        raise click.UsageError("Parquet is not for the terminal; say where to with --output FILE")
    if output is not None and kind is None:
        raise click.UsageError(f"say with --format what the file is to hold: {', '.join(FORMATS)}")
    key_name = "key" if kind in (None, "csv") else "_key"
    try:
        found = itertools.islice(_found(settings.tables[name], key), limit)
        rows = (item_row(k, v, key_name=key_name) for k, v in found)
        if output is not None and kind is not None:
            count = export(rows, output, kind=kind, key_name=key_name)
            click.echo(f"{output}: {count:,} item{'' if count == 1 else 's'}", err=True)
        else:
            _print(rows, kind, key_name=key_name)
    except ThawdError as error:
        fail(str(error))


def _found(of: Table, key: str | None) -> Iterator[tuple[str, bytes]]:
    """Keys and items; none of a table that is made when the first item is put, which is said."""
    from thawd.stores.tables.access import read_item, read_table

    try:
        if key is None:
            yield from read_table(of)
        elif (item := read_item(of, key)) is not None:
            yield key, item
    except NothingStored as none:
        click.echo(f"note: no items yet: {none}", err=True)


def _print(rows: Iterable[Row], kind: str | None, *, key_name: str) -> None:
    def write(line: bytes) -> None:
        click.echo(line, nl=False)

    if kind == "jsonl":
        write_json_lines(rows, write)
    elif kind == "csv":
        with Spool(rows, key_name=key_name) as spool:
            write_csv(spool, write)
    else:
        print_text(list(rows), key_name=key_name)
