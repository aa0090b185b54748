"""What lies in a project's tables, read as `thawd table` reads it, but by the test itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thawd import config
from thawd.errors import NothingStored
from thawd.stores.tables.access import read_table


def rows_of(root: Path, table: str) -> dict[str, dict[str, Any]]:
    """A table's items by key; none where none was put yet.

    Tests ask for them until they are there: a process for each look would cost more than all else they do.

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
