"""The machines of the cluster. A machine is alive while it holds its own lease, ``machine:NAME``.

`thawd.stores.cluster.lease_thread` stores the machine's row each time that it renews the lease. The row contains a
summary: bytes that only the machines themselves understand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

_PREFIX = "machine:"
FIRST_TOLERANT = 3
"""How many scripts of the schema the machines know that do not say how many."""

# A row with a smaller token was stored by the process that had the machine's lease before.
_STORE = """
INSERT INTO machines (name, token, address, summary) VALUES (%s, %s, %s, %s)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, address = excluded.address, summary = excluded.summary
WHERE machines.token <= excluded.token
"""
_LIVING = """
SELECT machines.name, machines.token, machines.address, machines.summary,
    extract(epoch FROM leases.until - clock_timestamp())::float8
FROM machines JOIN leases ON leases.name = %s || machines.name AND leases.token = machines.token
WHERE leases.until > clock_timestamp() ORDER BY machines.name
"""
# A machine that has got its lease a moment ago has no row yet.
_ALIVE = """
SELECT substr(leases.name, length(%(prefix)s) + 1), coalesce(machines.summary, '')
FROM leases LEFT JOIN machines ON leases.name = %(prefix)s || machines.name AND leases.token = machines.token
WHERE starts_with(leases.name, %(prefix)s) AND leases.until > clock_timestamp() ORDER BY 1
"""
# The lease's row is locked: the machine cannot come back to life before the transaction ends.
_IS_DEAD = "SELECT until <= clock_timestamp() FROM leases WHERE name = %s FOR UPDATE"


@dataclass(frozen=True, slots=True)
class Identity:
    """Name and address of a machine.

    Attributes:
        name: unique name, also after a restart; it belongs to the data folder.
        address: where other machines reach this one, for example ``https://10.0.0.3:8350``.
    """

    name: str
    address: str


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is alive.

    Attributes:
        name: unique name.
        token: token of its lease. It grows whenever the machine's thawd starts again, or was cut off for some time.
        address: where other machines reach it.
        summary: what the machine last stored about itself.
        left_s: how long its lease lasts without renewal, seconds.
    """

    name: str
    token: int
    address: str
    summary: bytes
    left_s: float


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a machine says about itself in its summary. Unknown fields are ignored; each later field needs a default.

    Attributes:
        thawd: its version of thawd; empty: it does not say.
        schema: how many scripts of the schema it knows (`thawd.stores.cluster.schema`).
        protocols: oldest and newest version of the protocol between machines that it speaks.
    """

    thawd: str = ""
    schema: int = FIRST_TOLERANT
    protocols: tuple[int, int] = (1, 1)


def encoded(about: About) -> bytes:
    """The summary of a machine."""
    return msgspec.json.encode(about)


def about(summary: bytes) -> About:
    """What a summary says. A machine with an earlier thawd stores an empty one."""
    try:
        return msgspec.json.decode(summary, type=About)
    except msgspec.DecodeError:
        return About()


def lease_name(machine: str) -> str:
    """Name of the lease of a machine."""
    return _PREFIX + machine


def store(connection: PatientConnection, machine: Identity, *, token: int, summary: bytes) -> None:
    """Store the row of a machine that holds its lease with the token `token`."""
    connection.execute(_STORE, (machine.name, token, machine.address, summary))


def living(connection: PatientConnection) -> list[Machine]:
    """The machines that are alive, in the order of their names."""
    return [
        Machine(name=name, token=token, address=address, summary=bytes(summary), left_s=left_s)
        for name, token, address, summary, left_s in connection.execute(_LIVING, (_PREFIX,))
    ]


def older(connection: PatientConnection, *, schema: int) -> list[str]:
    """The machines that are alive and know fewer scripts of the schema, or do not say how many.

    Args:
        connection: the connection.
        schema: number of scripts.

    Returns:
        Names with versions, for example ``b (thawd 0.1.0)``, in the order of the names.
    """
    found = []
    for name, summary in connection.execute(_ALIVE, {"prefix": _PREFIX}):
        known = about(bytes(summary))
        if known.schema < schema:
            found.append(f"{name} (thawd {known.thawd or 'of an earlier version'})")
    return found


def is_dead(connection: PatientConnection, machine: str) -> bool:
    """Inside a transaction: whether a machine has no lease, and gets none until the transaction ends."""
    row = connection.execute(_IS_DEAD, (lease_name(machine),)).fetchone()
    return row is not None and bool(row[0])
