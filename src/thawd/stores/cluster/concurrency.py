"""Shares of concurrency limits in the cluster's database: how much of each limit each machine may use.

The rows say for each machine how many environments of a function it may use at most. Their sum over all machines that
may still run something never exceeds the limit:

- a machine lowers its share in itself first, and then in its row;
- a machine raises its share in its row first, in a transaction that holds a lock and adds up all rows, and then in
  itself. If the answer is lost, its row says more than it uses;
- the row of a machine without a lease counts until everything that it began has timed out. Nobody needs to know
  whether such a machine is dead, paused or cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thawd.stores.cluster.leases import Lease
from thawd.stores.cluster.machines import lease_name

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

SCHEMA = """
CREATE TABLE concurrency (
    function text COLLATE "C" NOT NULL,
    machine text COLLATE "C" NOT NULL,
    count integer NOT NULL,
    wanted integer NOT NULL,
    lingers_s double precision NOT NULL,
    token bigint NOT NULL,
    number bigint NOT NULL,
    PRIMARY KEY (function, machine)
);
"""

_ROWS = """
SELECT concurrency.function, concurrency.machine, concurrency.count, concurrency.wanted,
    leases.until > clock_timestamp()
FROM concurrency JOIN leases ON leases.name = %(prefix)s || concurrency.machine
WHERE concurrency.function = ANY(%(functions)s)
    AND leases.until > clock_timestamp() - make_interval(secs => concurrency.lingers_s)
"""
_STORE = """
INSERT INTO concurrency (function, machine, count, wanted, lingers_s, token, number)
SELECT function, %(machine)s, count, wanted, lingers_s, %(token)s, %(number)s
FROM unnest(%(functions)s::text[], %(counts)s::integer[], %(wanted)s::integer[], %(lingers)s::float8[])
    AS new (function, count, wanted, lingers_s)
ON CONFLICT (function, machine) DO UPDATE SET count = excluded.count, wanted = excluded.wanted,
    lingers_s = excluded.lingers_s, token = excluded.token, number = excluded.number
"""
# A request that was given up may still reach the database, after a later one.
_IS_LATE = "SELECT 1 FROM concurrency WHERE machine = %s AND (token, number) >= (%s, %s) LIMIT 1"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a machine may use of a limit, and what it asks for.

    Attributes:
        limit: the limit of the whole cluster.
        held: what the machine uses at most until it gets an answer.
        wanted: what it would use if nobody else needed any.
        lingers_s: how long after the end of its lease something that it began can still run, seconds.
    """

    limit: int
    held: int
    wanted: int
    lingers_s: float


@dataclass(frozen=True, slots=True)
class Share:
    """The row of a machine that may still run something.

    Attributes:
        machine: the machine.
        count: what it may use at most.
        wanted: what it would use.
        is_alive: whether it holds its lease.
    """

    machine: str
    count: int
    wanted: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class Identified:
    """The machine that exchanges its shares.

    Attributes:
        name: its name.
        lease: its lease.
        numbers: counts its attempts, because the database may carry an earlier one out after a later one.
    """

    name: str
    lease: Lease
    numbers: Iterator[int]


Fair = Callable[[int, Mapping[str, int], str], int]
"""Decides the share of a machine: from the limit, what each machine that is alive wants, and the machine's name."""


def exchange(
    connection: PatientConnection, machine: Identified, claims: Mapping[str, Claim], *, fair: Fair
) -> dict[str, list[Share]]:
    """Store a machine's claims, each raised as far as the limit allows. May be repeated.

    Args:
        connection: the connection.
        machine: this machine.
        claims: its claims, by function. Its rows of other functions are removed, so it must run none of them.
        fair: decides shares.

    Returns:
        All rows of these functions, this machine's own included; empty if the lease has ended, or if a later request
        has been answered already.
    """
    names, lease = sorted(claims), machine.lease
    with connection.transaction():
        # Without this lock, two machines could take the same part of a limit.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || ' concurrency', 0))")
        held = "SELECT 1 FROM leases WHERE name = %s AND token = %s AND until > clock_timestamp()"
        number = next(machine.numbers)
        if connection.execute(held, (lease.name, lease.token)).fetchone() is None:
            return {}
        if connection.execute(_IS_LATE, (machine.name, lease.token, number)).fetchone() is not None:
            return {}
        found: dict[str, list[Share]] = {name: [] for name in names}
        for name, *row in connection.execute(_ROWS, {"prefix": lease_name(""), "functions": names}):
            if row[0] != machine.name:
                found[name].append(Share(*row))
        for name in names:
            count = raised(claims[name], found[name], machine=machine.name, fair=fair)
            found[name].append(Share(machine.name, count, claims[name].wanted, True))
        values = {
            "machine": machine.name,
            "token": lease.token,
            "number": number,
            "functions": names,
            "counts": [found[name][-1].count for name in names],
            "wanted": [claims[name].wanted for name in names],
            "lingers": [claims[name].lingers_s for name in names],
        }
        connection.execute(_STORE, values)
        gone = "DELETE FROM concurrency WHERE machine = %s AND function <> ALL(%s)"
        connection.execute(gone, (machine.name, names))
    return found


def raised(claim: Claim, others: Sequence[Share], *, machine: str, fair: Fair) -> int:
    """Return the share of a machine, which is what it holds, or more if the limit allows it.

    Args:
        claim: the machine's claim.
        others: the shares of all other machines that may still run something.
        machine: the machine.
        fair: decides shares.
    """
    alive = {share.machine: share.wanted for share in others if share.is_alive}
    target = fair(claim.limit, {**alive, machine: claim.wanted}, machine)
    return max(claim.held, min(target, claim.limit - sum(share.count for share in others)))


def forget(connection: PatientConnection, machine: str) -> None:
    """Remove a machine's rows, because nothing that it began can run any more."""
    connection.execute("DELETE FROM concurrency WHERE machine = %s", (machine,))
