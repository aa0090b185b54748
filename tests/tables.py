"""Reads the rows of a project's tables like `thawd table`, but within the test process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thawd import config
from thawd.errors import NothingStored
from thawd.stores.tables.access import read_table


def rows_of(root: Path, table: str) -> dict[str, dict[str, Any]]:
    """Return a table's items by key; none if no item was put yet.

    Tests poll for rows. Starting a process for each poll would cost more than everything else that they do.

    Args:
        root: the folder of thawd.toml.
        table: name of the table.
    """
    try:
        items = list(read_table(config.load(root / "thawd.toml").tables[table]))
    except NothingStored:
        return {}
    keys = [key for key, _ in items]
    assert len(keys) == len(set(keys)), "a key has two rows"
    return {key: json.loads(item) for key, item in items}
