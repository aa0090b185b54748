"""Settings of the whole cluster, which hold for all its machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

SCHEMA = """
CREATE TABLE settings (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
"""

AUTHORITY = "authority"
"""Name of the setting that says which authority the cluster has: the fingerprint of its certificate."""


def claim(connection: PatientConnection, name: str, value: str) -> str:
    """Set a setting, unless it is set; returns its value. May be repeated."""
    connection.execute("INSERT INTO settings VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, value))
    row = connection.execute("SELECT value FROM settings WHERE name = %s", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def raise_to(connection: PatientConnection, name: str, value: int) -> None:
    """Set a setting that is a number, unless it has a larger one."""
    connection.execute(
        "INSERT INTO settings VALUES (%s, %s::text) ON CONFLICT (name) DO UPDATE SET value = excluded.value "
        "WHERE settings.value::bigint < excluded.value::bigint",
        (name, value),
    )


def found(connection: PatientConnection, name: str) -> str | None:
    """The value of a setting; None: it is not set."""
    row = connection.execute("SELECT value FROM settings WHERE name = %s", (name,)).fetchone()
    return None if row is None else str(row[0])
