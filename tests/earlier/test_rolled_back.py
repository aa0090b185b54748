"""What an operator can go back to after an upgrade: the backup from before it, and nothing else.

The earlier version is represented by the data that it wrote and by its migrations, which are only ever appended to.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tarfile
from pathlib import Path

import pytest

from tests.earlier.test_taken_over import EARLIER
from tests.integration.conftest import Project
from thawd.errors import StoreError
from thawd.stores.database import Database
from thawd.stores.schema import MIGRATIONS


def schema_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def test_a_backup_from_before_an_upgrade_leads_back_and_upgraded_data_is_refused(tmp_path: Path) -> None:
    # Given the data of the earliest version, and a backup that was made after the packages were upgraded, but before
    # the server was started
    with tarfile.open(EARLIER[0]) as archived:
        archived.extractall(tmp_path, filter="data")
    project, backup = Project(tmp_path / "project"), tmp_path / "backup"
    state = project.data / "thawd.db"
    earlier = schema_of(state)
    assert earlier < len(MIGRATIONS)
    done = project.command("backup", str(backup))
    assert done.returncode == 0, done.stderr
    assert schema_of(state) == earlier, "a backup changes nothing"

    # When this version has served the data
    with project.up():
        pass
    assert schema_of(state) == len(MIGRATIONS)

    # Then the earlier version refuses them, and the backup is as that version wrote it.
    with pytest.raises(StoreError, match="written by a newer thawd"):
        Database(state, migrations=MIGRATIONS[:earlier])
    done = project.command("restore", str(backup), "--replace")
    assert done.returncode == 0, done.stderr
    assert schema_of(state) == earlier
    Database(state, migrations=MIGRATIONS[:earlier]).close()
    with contextlib.closing(sqlite3.connect(state)) as connection:
        assert connection.execute("SELECT count(*) FROM events WHERE state = 0").fetchone()[0] >= 5
