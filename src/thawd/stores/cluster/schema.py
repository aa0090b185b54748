"""The schema of the cluster's PostgreSQL database, and its migrations.

The table ``migrations`` lists the scripts that have run. Only append scripts; never change one that has been released.
Machines with an older and a newer thawd use a database together while a cluster is upgraded, so a script may add tables
and columns with defaults, but must not take away what the release before needs.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING

from thawd.errors import StoreError
from thawd.resources import StoreUrl
from thawd.stores.cluster import cluster_settings, concurrency, event_copies, leader_state
from thawd.stores.cluster.sessions import Session

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

# `operations` contains a row for each transaction of `Session.transact`. A lease that was released has the empty
# holder. `machines.token` is the token of the lease that the machine held when it stored its row.
_FIRST = """
CREATE TABLE operations (id uuid PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX operations_by_age ON operations (at);
CREATE TABLE leases (
    name text COLLATE "C" PRIMARY KEY,
    holder text NOT NULL,
    token bigint NOT NULL,
    until timestamptz NOT NULL
);
CREATE TABLE machines (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,
    address text NOT NULL,
    summary bytea NOT NULL
);
"""

MIGRATIONS = (_FIRST, event_copies.SCHEMA, concurrency.SCHEMA + leader_state.SCHEMA + cluster_settings.SCHEMA)
_COMMENT = "tables of thawd"  # the comment with which thawd marks a schema that it has made
# How long the transaction numbers of `Session.transact` are kept. A session looks for a number only until its deadline.
_OPERATIONS_KEPT = "1 day"
# How long a machine may be away and then still know which of its events others have run.
_MOVES_KEPT = "90 days"
PATIENCE_S = 30.0
"""How long `prepare` tries to reach the database by default, seconds."""


def prepare(url: StoreUrl, *, patience_s: float = PATIENCE_S) -> None:
    """Create thawd's tables, or bring them up to date. Several machines may do this at the same time. Blocks.

    Args:
        url: the database.
        patience_s: how long to try, seconds.

    Raises:
        StoreError: the database cannot be used, has a schema that another program made, or was made by a newer thawd.
    """
    session = Session(url)
    try:
        session.run(lambda connection: _migrate(connection, session.schema, url), until=time.monotonic() + patience_s)
    finally:
        session.close()


def require_library(url: StoreUrl) -> None:
    """Check that psycopg is installed.

    Raises:
        StoreError: it is not; the message says how to install it.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError(f"{url} needs psycopg; install it with `pip install 'thawd[cluster]'`")


def _migrate(connection: PatientConnection, schema: str, url: StoreUrl) -> None:
    from psycopg import sql

    name = sql.Identifier(schema)
    with connection.transaction():
        # Without this lock, two machines that create the schema at the same time would disturb each other.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"thawd cluster {schema}",))
        found = connection.execute(
            "SELECT coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace WHERE nspname = %s", (schema,)
        ).fetchone()
        if found is None:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
            connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(name, sql.Literal(_COMMENT)))
            connection.execute("CREATE TABLE migrations (version integer PRIMARY KEY)")
        elif found[0] != _COMMENT:
            raise StoreError(
                f"{url} has a schema {schema} that thawd did not make; it was not changed. Name another schema with "
                "?schema=NAME in the URL"
            )
        row = connection.execute("SELECT coalesce(max(version), 0) FROM migrations").fetchone()
        version = row[0] if row is not None else 0
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the tables of thawd in {url} were made by a newer thawd (version {version}; this thawd knows "
                f"versions up to {len(MIGRATIONS)}); use the newer thawd, or other tables: ?schema=NAME in the URL"
            )
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            connection.execute(sql.SQL(script))  # the scripts are constants of this module
            connection.execute("INSERT INTO migrations VALUES (%s)", (number,))
        connection.execute("DELETE FROM operations WHERE at < clock_timestamp() - %s::interval", (_OPERATIONS_KEPT,))
        connection.execute("DELETE FROM event_moves WHERE at < clock_timestamp() - %s::interval", (_MOVES_KEPT,))
