"""The command ``thawd table``: print a table's items, or export them into a file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import print_text
from thawd.cli.table_export import FORMATS, Row, Spool, export, write_csv, write_json_lines
from thawd.errors import NothingStored, StoreError, ThawdError
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.resources import Table


@click.command(
    epilog=examples(
        "thawd table labels -n 20",
        "thawd table labels --key cat.png --json",
        "thawd table labels --format parquet -o labels.parquet",
    )
)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in UTF-8, one object on each line.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV in UTF-8, with a header line.")
@click.option(
    "--format", "chosen", type=click.Choice(FORMATS), help="Output format; parquet needs --output and thawd[parquet]."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write to this file. An existing file is replaced when the new one is complete.",
)
@click.option("--key", help="Print only the item with this key.")
@click.option("-n", "--limit", type=click.IntRange(1), help="Print at most this many items.")
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
    """Print or export the items of the table NAME.

    Items are sorted by key. The key comes first: as the field `_key` in JSON and Parquet, otherwise as the column
    `key`. If an item has a field with that name, an underscore is added to the field's name: `_key` becomes `_key_`
    (and `_key_` becomes `_key__`), `key` becomes `key_`.

    Without a format, the items are printed as columns, with line breaks and control characters escaped; JSON escapes
    them in its own way, and CSV contains them unchanged. A Parquet column is bool, int64, double or string if all its
    values have that type; otherwise it contains JSON as text.

    The command works whether the server runs or not.
    """
    settings = load(config_path)
    if name not in settings.tables:
        fail(f"there is no table {name!r}; {did_you_mean(name, settings.tables, what='tables')}")
    asked = [kind for kind, is_asked in (("jsonl", as_json), ("csv", as_csv), (chosen, chosen)) if is_asked]
    if len(asked) > 1:
        raise click.UsageError("--json, --csv and --format exclude each other")
    kind = asked[0] if asked else None
    if output is None and kind == "parquet":
        raise click.UsageError("Parquet cannot be printed on the terminal; name a file with --output")
    if output is not None and kind is None:
        raise click.UsageError(f"choose the format of the file with --format: {', '.join(FORMATS)}")
    key_name = "key" if kind in (None, "csv") else "_key"
    try:
        found = itertools.islice(_found(settings.tables[name], key), limit)
        rows = (_row(k, v, key_name=key_name) for k, v in found)
        if output is not None and kind is not None:
            count = export(rows, output, kind=kind, key_name=key_name)
            click.echo(f"{output}: {count:,} item{'' if count == 1 else 's'}", err=True)
        else:
            _print(rows, kind, key_name=key_name)
    except ThawdError as error:
        fail(str(error))


def _row(key: str, item: bytes, *, key_name: str) -> dict[str, Any]:
    """Return an item as a row: its key in the field `key_name`, then its fields.

    An underscore is added to the name of a field that is `key_name`, with or without underscores at its end.

    Raises:
        StoreError: the item is not a JSON object. thawd stores only such items, so another program wrote this one.
    """
    try:
        fields = json.loads(item)
    except ValueError as error:
        raise StoreError(f"the item under the key {key!r} is not JSON ({error}); store the item again") from None
    if not isinstance(fields, dict):
        raise StoreError(f"the item under the key {key!r} is not a JSON object; store the item again")
    return {key_name: key, **{f"{n}_" if n.rstrip("_") == key_name else n: value for n, value in fields.items()}}


def _found(table: Table, key: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and items of a table, or only the item with `key`.

    The table's file or database table is created with the first item. If it does not exist yet, a note says so.
    """
    from thawd.stores.tables.access import read_item, read_table

    try:
        if key is None:
            yield from read_table(table)
        elif (item := read_item(table, key)) is not None:
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
