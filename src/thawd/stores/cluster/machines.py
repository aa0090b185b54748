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


def is_dead(connection: PatientConnection, machine: str) -> bool:
    """Inside a transaction: whether a machine has no lease, and gets none until the transaction ends."""
    row = connection.execute(_IS_DEAD, (lease_name(machine),)).fetchone()
    return row is not None and bool(row[0])
