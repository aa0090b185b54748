"""The schema of the cluster's PostgreSQL database, and its migrations.

The table ``migrations`` lists the scripts that have run. Only append scripts; never change one that has been released.
Machines with an older and a newer thawd use a database together while a cluster is upgraded. So there are two kinds:

- An expansion adds tables, indexes, or columns with defaults. Older machines go on and can start again, so it runs when
  the first newer machine starts.
- A contraction takes away or changes what older machines need. It runs only when no older machine is alive. The thawd
  that has it must work before it, too, and no later expansion may need it.

The setting ``oldest_schema`` says how many scripts a thawd must know to use the tables: all contractions that have run.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from thawd.errors import StoreError
from thawd.resources import StoreUrl
from thawd.stores.cluster import cluster_settings, concurrency, event_copies, leader_state, machines
from thawd.stores.cluster.machines import FIRST_TOLERANT
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


class Migration(NamedTuple):
    """A script.

    Attributes:
        script: SQL statements.
        is_contraction: whether older machines cannot use the tables any more.
    """

    script: str
    is_contraction: bool = False


MIGRATIONS = (
    Migration(_FIRST),
    Migration(event_copies.SCHEMA),
    Migration(concurrency.SCHEMA + leader_state.SCHEMA + cluster_settings.SCHEMA),
)
_OLDEST_SCHEMA = "oldest_schema"
_COMMENT = "tables of thawd"  # the comment with which thawd marks a schema that it has made
# How long the transaction numbers of `Session.transact` are kept. A session looks for a number only until its deadline.
_OPERATIONS_KEPT = "1 day"
# How long a machine may be away and then still know which of its events others have run.
_MOVES_KEPT = "90 days"
PATIENCE_S = 30.0
"""How long `prepare` tries to reach the database by default, seconds."""


def prepare(url: StoreUrl, *, patience_s: float = PATIENCE_S) -> list[str]:
    """Create thawd's tables, or bring them up to date. Several machines may do this at the same time. Blocks.

    Args:
        url: the database.
        patience_s: how long to try, seconds.

    Returns:
        Older machines for which contractions wait; see `advance`. `prepare` is to be called again later.

    Raises:
        StoreError: the database cannot be used, has a schema that another program made, or was made by a newer thawd.
    """
    session = Session(url)
    try:
        return session.run(
            lambda connection: _prepare(connection, session.schema, url), until=time.monotonic() + patience_s
        )
    finally:
        session.close()


def _prepare(connection: PatientConnection, schema: str, url: StoreUrl) -> list[str]:
    with connection.transaction():
        begin(connection, schema, url)
        waits_for = advance(connection)
        forget_old(connection)
    return waits_for


def forget_old(connection: PatientConnection) -> None:
    """Remove what nobody needs any more: numbers of old transactions, and notes for machines that never came back."""
    connection.execute("DELETE FROM operations WHERE at < clock_timestamp() - %s::interval", (_OPERATIONS_KEPT,))
    connection.execute("DELETE FROM event_moves WHERE at < clock_timestamp() - %s::interval", (_MOVES_KEPT,))


def require_library(url: StoreUrl) -> None:
    """Check that psycopg is installed.

    Raises:
        StoreError: it is not; the message says how to install it.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise StoreError(f"{url} needs psycopg; install it with `pip install 'thawd[cluster]'`")


def begin(connection: PatientConnection, schema: str, url: StoreUrl) -> None:
    """Inside a transaction: lock thawd's schema for it, and create the schema if it is missing.

    Raises:
        StoreError: another program made the schema, or a newer thawd changed it.
    """
    from psycopg import sql

    # Without this lock, two machines that create the schema at the same time would disturb each other.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"thawd cluster {schema}",))
    if _has_schema(connection, schema, url):
        require_known(connection, url)
        return
    name = sql.Identifier(schema)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(name, sql.Literal(_COMMENT)))
    connection.execute("CREATE TABLE migrations (version integer PRIMARY KEY)")


def _has_schema(connection: PatientConnection, schema: str, url: StoreUrl) -> bool:
    found = connection.execute(
        "SELECT coalesce(obj_description(oid, 'pg_namespace'), '') FROM pg_namespace WHERE nspname = %s", (schema,)
    ).fetchone()
    if found is not None and found[0] != _COMMENT:
        raise StoreError(
            f"{url} has a schema {schema} that thawd did not make; it was not changed. Name another schema with "
            "?schema=NAME in the URL"
        )
    return found is not None


def require_tables(connection: PatientConnection, schema: str, url: StoreUrl) -> set[int]:
    """The scripts that have run.

    Raises:
        StoreError: there are no tables of thawd, or a newer thawd made them.
    """
    if not _has_schema(connection, schema, url):
        raise StoreError(
            f"{url} has no tables of thawd in the schema {schema}; the first start of a machine makes them"
        )
    require_known(connection, url)
    return done(connection)


def done(connection: PatientConnection) -> set[int]:
    """The numbers of the scripts that have run, from 1."""
    return {row[0] for row in connection.execute("SELECT version FROM migrations")}


def require_known(connection: PatientConnection, url: StoreUrl) -> None:
    """Check that this thawd can use the tables: it knows their scripts, or those that it does not know are expansions.

    Raises:
        StoreError: it cannot.
    """
    version = max(done(connection), default=0)
    if version <= len(MIGRATIONS):
        return
    oldest = cluster_settings.found(connection, _OLDEST_SCHEMA)
    if oldest is None or int(oldest) > len(MIGRATIONS):
        raise StoreError(
            f"the tables of thawd in {url} were made by a newer thawd (version {version}; this thawd knows "
            f"versions up to {len(MIGRATIONS)}); use the newer thawd, or other tables: ?schema=NAME in the URL"
        )


def advance(connection: PatientConnection, *, only: Collection[int] | None = None) -> list[str]:
    """Inside a transaction that has called `begin`: run the scripts that have not run.

    Args:
        connection: the connection.
        only: run these scripts, whoever is alive; None: run all expansions, and contractions if no older machine is
            alive.

    Returns:
        The older machines for which contractions wait, each with its version, for example ``b (thawd 0.1.0)``.
    """
    from psycopg import sql

    found = done(connection)
    missing = [number for number in range(1, len(MIGRATIONS) + 1) if number not in found]
    waits_for: list[str] = []
    if only is not None:
        missing = [number for number in missing if number in only]
    elif contractions := [number for number in missing if MIGRATIONS[number - 1].is_contraction and found]:
        waits_for = machines.older(connection, schema=max(contractions))
        if not waits_for:
            # Nobody gets a lease before the transaction ends. Then each machine looks at `oldest_schema`.
            connection.execute("LOCK TABLE leases IN SHARE ROW EXCLUSIVE MODE")
            waits_for = machines.older(connection, schema=max(contractions))
        missing = [number for number in missing if not (waits_for and number in contractions)]
    for number in missing:
        connection.execute(sql.SQL(MIGRATIONS[number - 1].script))  # the scripts are constants of this package
        connection.execute("INSERT INTO migrations VALUES (%s)", (number,))
    found.update(missing)
    if missing and max(found) > FIRST_TOLERANT:
        contracted = [number for number in found if number <= len(MIGRATIONS) and MIGRATIONS[number - 1].is_contraction]
        cluster_settings.raise_to(connection, _OLDEST_SCHEMA, max([FIRST_TOLERANT, *contracted]))
    return waits_for
