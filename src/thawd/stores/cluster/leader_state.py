"""What the leader of a cluster must know about the leader before it: the progress of schedules and streams.

Each change is made together with the check that this machine still is the leader. So a leader that was paused or cut
off changes nothing after another one has taken over. A run of a schedule is queued in the same transaction as the
schedule's progress: its event has a copy in the database, which outlives the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from thawd.errors import LeaseLostError
from thawd.stores.cluster import leases
from thawd.stores.cluster.access import ClusterDatabase
from thawd.stores.cluster.copier import EventCopier
from thawd.stores.cluster.leases import Lease
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.schedules import ScheduleState, ScheduleStore
from thawd.stores.stream_positions import Position, StreamPositions

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

SCHEMA = """
CREATE TABLE schedules (name text COLLATE "C" PRIMARY KEY, state bytea NOT NULL);
CREATE TABLE stream_positions (
    mapping text COLLATE "C" NOT NULL,
    shard text COLLATE "C" NOT NULL,
    position bytea NOT NULL,
    PRIMARY KEY (mapping, shard)
);
"""

LEADER = "leader"
"""Name of the lease of the leader."""

_PUT_SCHEDULE = """
INSERT INTO schedules (name, state) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET state = excluded.state
"""
_PUT_POSITIONS = """
INSERT INTO stream_positions (mapping, shard, position)
SELECT %s, shard, position FROM unnest(%b::text[], %b::bytea[]) AS new (shard, position)
ON CONFLICT (mapping, shard) DO UPDATE SET position = excluded.position
"""

Leading = Callable[[], Lease | None]
"""Returns the leader's lease, if this machine holds it at this moment."""


def _require(lease: Lease | None) -> Lease:
    if lease is None:
        raise LeaseLostError("this machine is not the leader of its cluster, so it changed nothing")
    return lease


class ClusterSchedules(ScheduleStore):
    """The progress of schedules in the cluster's database.

    Args:
        database: the cluster's database.
        copier: queues events.
        leading: returns the leader's lease.
    """

    def __init__(self, database: ClusterDatabase, copier: EventCopier, leading: Leading) -> None:
        self._cluster = database
        self._copier = copier
        self._leading = leading

    async def load(self) -> dict[str, ScheduleState]:
        """See `ScheduleStore.load`."""
        rows = await self._cluster.run(
            lambda connection: connection.execute("SELECT name, state FROM schedules").fetchall()
        )
        return {name: msgspec.json.decode(state, type=ScheduleState) for name, state in rows}

    async def advance(
        self, before: ScheduleState | None, after: ScheduleState, events: Sequence[NewEvent] = ()
    ) -> bool:
        """See `ScheduleStore.advance`.

        Raises:
            UnknownOutcomeError: it is unknown whether the progress was stored; `load` shows it.
            StoreError: the progress could not be stored, or this machine is not the leader.
        """
        lease = _require(self._leading())

        def work(connection: PatientConnection) -> bool:
            leases.require(connection, lease)
            row = connection.execute("SELECT state FROM schedules WHERE name = %s", (after.name,)).fetchone()
            if (None if row is None else msgspec.json.decode(row[0], type=ScheduleState)) != before:
                return False
            connection.execute(_PUT_SCHEDULE, (after.name, msgspec.json.encode(after)))
            return True

        return await self._copier.place_with(work, events)

    async def forget(self, names: Iterable[str]) -> None:
        """See `ScheduleStore.forget`."""
        lease, gone = _require(self._leading()), list(names)

        def work(connection: PatientConnection) -> None:
            leases.require(connection, lease)
            connection.execute("DELETE FROM schedules WHERE name = ANY(%s)", (gone,))

        await self._cluster.transact(work)


class ClusterPositions(StreamPositions):
    """The positions of streams in the cluster's database.

    Args:
        database: the cluster's database.
        leading: returns the leader's lease.
    """

    def __init__(self, database: ClusterDatabase, leading: Leading) -> None:
        self._cluster = database
        self._leading = leading

    async def load(self, mapping: str) -> dict[str, Position]:
        """See `StreamPositions.load`."""
        rows = await self._cluster.run(
            lambda connection: connection.execute(
                "SELECT shard, position FROM stream_positions WHERE mapping = %s", (mapping,)
            ).fetchall()
        )
        return {shard: msgspec.json.decode(position, type=Position) for shard, position in rows}

    async def save(
        self, mapping: str, positions: Iterable[tuple[str, Position]], *, remove: Iterable[str] = ()
    ) -> None:
        """See `StreamPositions.save`.

        Raises:
            StoreError: they could not be stored, or this machine is not the leader.
        """
        lease = _require(self._leading())
        pairs, gone = list(positions), list(remove)
        shards, encoded = [shard for shard, _ in pairs], [msgspec.json.encode(position) for _, position in pairs]

        def work(connection: PatientConnection) -> None:
            leases.require(connection, lease)
            connection.execute("DELETE FROM stream_positions WHERE mapping = %s AND shard = ANY(%s)", (mapping, gone))
            connection.execute(_PUT_POSITIONS, (mapping, shards, encoded))

        await self._cluster.transact(work)

    async def forget(self, mapping: str) -> None:
        """See `StreamPositions.forget`."""
        lease = _require(self._leading())

        def work(connection: PatientConnection) -> None:
            leases.require(connection, lease)
            connection.execute("DELETE FROM stream_positions WHERE mapping = %s", (mapping,))

        await self._cluster.transact(work)
