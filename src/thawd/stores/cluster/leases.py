"""Leases: a name that one process of the cluster holds at a time, for a few seconds, until it renews the lease.

Only the database's clock decides when a lease ends, so the clocks of the machines need not agree. A holder measures
with its own clock that cannot be set: it counts the lease's time from the moment before it sent its request. That
moment is before the database's own reading, so the holder stops before the database gives the lease to another process.

A process may still be paused between its last look at the clock and its act. So each lease has a token, a number that
grows whenever the lease goes to another process. A change in the database that must not come too late is made together
with `require`, which fails if the token is no longer the newest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thawd.errors import LeaseLostError

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

DURATION_S = 3.0
"""How long a lease lasts without renewal by default, seconds."""
_DRIFT = 0.05
"""Largest share by which the clocks of two machines may run faster or slower than each other."""

# CLOCK_BOOTTIME goes on while the machine sleeps. CLOCK_MONOTONIC does not, so a machine that wakes up would believe
# that it still holds its leases.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_RENEW = """
UPDATE leases SET until = clock_timestamp() + make_interval(secs => %s)
FROM unnest(%s::text[], %s::bigint[]) AS mine (name, token)
WHERE leases.name = mine.name AND leases.token = mine.token AND leases.holder = %s AND leases.until > clock_timestamp()
RETURNING leases.name
"""
# A token is at least the time. So no token is used twice if the database loses its last transactions, because a standby
# that lacks them or a backup has taken its place.
_TAKE = """
INSERT INTO leases (name, holder, token, until)
SELECT name, %(holder)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    clock_timestamp() + make_interval(secs => %(duration)s)
FROM unnest(%(names)s::text[]) AS wanted (name)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = greatest(leases.token + 1, excluded.token),
    until = clock_timestamp() + make_interval(secs => %(duration)s)
WHERE leases.until <= clock_timestamp() OR leases.holder = excluded.holder
RETURNING name, token
"""
# A released lease ends now, but keeps its token, so that the next one is higher.
_RELEASE = """
UPDATE leases SET holder = '', until = clock_timestamp()
FROM unnest(%s::text[], %s::bigint[]) AS mine (name, token)
WHERE leases.name = mine.name AND leases.token = mine.token AND leases.holder = %s
"""


def now_s() -> float:
    """Seconds of a clock that nobody can set, and that goes on while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@dataclass(slots=True, eq=False)
class Lease:
    """A lease that this process has got. It is lost for good when it has ended: another one has another token.

    Attributes:
        name: what the lease is for.
        token: fencing token; a later lease of the same name has a larger one.
        ends_s: when this process must stop acting, in seconds of `now_s`.
    """

    name: str
    token: int
    ends_s: float

    @property
    def is_held(self) -> bool:
        """Whether this process may still act for the lease. Ask before each act, not once."""
        return now_s() < self.ends_s

    @property
    def left_s(self) -> float:
        """How long this process may still act without renewal, seconds; 0 if the lease has ended."""
        return max(0.0, self.ends_s - now_s())


def ends_s(sent_s: float, duration_s: float) -> float:
    """When a holder must stop, in seconds of `now_s`.

    Args:
        sent_s: when the request was sent, in seconds of `now_s`.
        duration_s: the length of the lease, seconds.
    """
    return sent_s + duration_s * (1 - _DRIFT)


def renew(
    connection: PatientConnection, leases: Sequence[Lease], *, holder: str, duration_s: float
) -> tuple[list[Lease], list[Lease]]:
    """Renew leases. Returns those that were renewed, and those that are lost.

    A lease that ended in the meantime is lost even if nobody has taken it.
    """
    sent = now_s()
    names = {
        row[0]
        for row in connection.execute(
            _RENEW, (duration_s, [lease.name for lease in leases], [lease.token for lease in leases], holder)
        )
    }
    kept = [lease for lease in leases if lease.name in names and lease.is_held]
    for lease in kept:
        lease.ends_s = ends_s(sent, duration_s)
    return kept, [lease for lease in leases if lease not in kept]


def take(connection: PatientConnection, names: Sequence[str], *, holder: str, duration_s: float) -> list[Lease]:
    """Take those of the leases `names` that nobody holds."""
    sent = now_s()
    # The names are sorted, because two processes that lock rows in different orders could wait for each other.
    rows = connection.execute(_TAKE, {"names": sorted(names), "holder": holder, "duration": duration_s}).fetchall()
    return [Lease(name, token, ends_s(sent, duration_s)) for name, token in rows]


def release(connection: PatientConnection, leases: Sequence[Lease], *, holder: str) -> None:
    """End leases, so that others can take them now. The caller must have stopped acting for them."""
    connection.execute(_RELEASE, ([lease.name for lease in leases], [lease.token for lease in leases], holder))


def require(connection: PatientConnection, lease: Lease) -> None:
    """Inside a transaction: make sure that the transaction happens only if this process holds `lease`.

    The row is locked until the transaction ends, so until then the lease cannot go to another process. If this process
    is paused in the transaction, the server ends the transaction after a second (`sessions` sets this limit).

    Raises:
        LeaseLostError: the lease has ended or belongs to another process.
    """
    row = connection.execute(
        "SELECT 1 FROM leases WHERE name = %s AND token = %s AND until > clock_timestamp() FOR SHARE",
        (lease.name, lease.token),
    ).fetchone()
    if row is None:
        raise LeaseLostError(f"this machine no longer holds the lease {lease.name}, so it changed nothing")
