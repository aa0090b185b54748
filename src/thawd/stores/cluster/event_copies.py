"""Copies of events in the cluster's database. A copy's owner is the machine whose state file has the event.

A copy consists of the event as it was accepted, and of its progress. When a machine is dead, another one takes its
copies over, and notes for each that it was moved. A machine that comes back learns from these notes which of its events
it must forget, and from nothing else: an event whose copy is only missing, for example because the database was
restored from a backup, is copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thawd.errors import LeaseLostError, UnknownOutcomeError
from thawd.stores.cluster.leases import Lease
from thawd.stores.cluster.machines import lease_name
from thawd.stores.events.copied_events import CopiedEvent, Progress
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.schema import QUEUED

if TYPE_CHECKING:
    from thawd.stores.tables.postgresql_connection import PatientConnection

SCHEMA = """
CREATE TABLE event_copies (
    key text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    event bytea NOT NULL,
    progress bytea,
    moves integer NOT NULL DEFAULT 0
);
CREATE INDEX event_copies_by_owner ON event_copies (owner, key);
CREATE TABLE event_moves (
    owner text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (owner, key)
);
"""

GRACE_S = 1.0
"""How long after the end of a machine's lease others take its events over, seconds. A restart is usually shorter."""

_IS_MEMBER = """
EXISTS (SELECT FROM leases WHERE name = %(lease)s AND token = %(token)s AND until > clock_timestamp())
"""
_PLACE = f"""
INSERT INTO event_copies (key, owner, event)
SELECT key, %(owner)s, event FROM unnest(%(keys)b::text[], %(events)b::bytea[]) AS new (key, event) WHERE {_IS_MEMBER}
ON CONFLICT (key) DO NOTHING
"""
_FOLLOW = """
UPDATE event_copies SET progress = new.progress FROM unnest(%b::text[], %b::bytea[]) AS new (key, progress)
WHERE event_copies.key = new.key AND owner = %s
"""
_END = "DELETE FROM event_copies WHERE key = ANY(%s) AND owner = %s"
_DEAD = """
SELECT machines.name FROM machines JOIN leases ON leases.name = %(prefix)s || machines.name
WHERE leases.until < clock_timestamp() - make_interval(secs => %(grace)s)
    AND EXISTS (SELECT FROM event_copies WHERE owner = machines.name)
"""
# While the row of the dead machine's lease is locked, the machine cannot come back to life.
_IS_DEAD = """
SELECT 1 FROM leases WHERE name = %s AND until < clock_timestamp() - make_interval(secs => %s) FOR SHARE
"""
_TAKE_OVER = f"""
WITH found AS (
    SELECT key FROM event_copies WHERE owner = %(dead)s AND {_IS_MEMBER} ORDER BY key LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE event_copies SET owner = %(owner)s, moves = moves + 1 FROM found WHERE event_copies.key = found.key
    RETURNING event_copies.key
), noted AS (
    INSERT INTO event_moves (owner, key) SELECT %(dead)s, key FROM moved ON CONFLICT DO NOTHING
), back AS (
    DELETE FROM event_moves WHERE owner = %(owner)s AND key IN (SELECT key FROM moved)
)
SELECT key FROM moved
"""
# An event that was moved more often than this is perhaps the reason why its machines died. So from then on, its copy
# says when it runs (`Copies.note_run`), and a machine's death while it runs counts. To wait on a machine that dies is
# no reason: in a long queue, some events wait while every machine is restarted several times.
_UNSUSPECTED_MOVES = 1

_NEW_EVENT = msgspec.msgpack.Decoder(tuple[NewEvent, float])
_PROGRESS = msgspec.msgpack.Decoder(Progress)
_encode = msgspec.msgpack.Encoder().encode


def encoded(event: NewEvent, accepted_at: float) -> bytes:
    """An event as its copy stores it."""
    return _encode((event, accepted_at))


def place(
    connection: PatientConnection, keys: Sequence[str], events: Sequence[bytes], *, owner: str, lease: Lease
) -> None:
    """Store copies, all or none. May be repeated.

    Args:
        connection: the connection.
        keys: new keys of the copies.
        events: the results of `encoded`.
        owner: this machine.
        lease: this machine's own lease.

    Raises:
        LeaseLostError: this machine does not hold its lease, so nothing was stored.
        UnknownOutcomeError: the same, but an earlier attempt has stored the copies; another machine perhaps runs them.
    """
    values = {"keys": list(keys), "events": list(events), **_member(owner, lease)}
    if connection.execute(_PLACE, values).rowcount == len(keys):
        return
    rows = connection.execute(
        "SELECT owner, count(*) FROM event_copies WHERE key = ANY(%s) GROUP BY owner", (list(keys),)
    ).fetchall()
    if rows == [(owner, len(keys))]:
        return  # an earlier attempt stored them, and its answer was lost
    if rows or _any_moved(connection, keys, owner=owner):
        raise UnknownOutcomeError(
            "this machine lost its connection to the cluster while it stored events, so it is unknown whether they run"
        )
    raise LeaseLostError("this machine is cut off from its cluster, so it accepts no events; send them to another")


def withdraw(connection: PatientConnection, keys: Sequence[str], *, owner: str) -> None:
    """Remove copies of events that were not accepted after all. May be repeated.

    Raises:
        UnknownOutcomeError: another machine has taken one of them over, and has perhaps run the event.
    """
    connection.execute(_END, (list(keys), owner))
    if _any_moved(connection, keys, owner=owner):
        raise UnknownOutcomeError("another machine has taken the event over")


def follow(
    connection: PatientConnection, *, ended: Sequence[str], changed: Sequence[tuple[str, Progress]], owner: str
) -> None:
    """Bring copies up to date, if this machine still owns them. May be repeated.

    Args:
        connection: the connection.
        ended: keys of copies whose events have ended.
        changed: keys of copies with the new progress of their events.
        owner: this machine.
    """
    if ended:
        connection.execute(_END, (list(ended), owner))
    if changed:
        keys, progress = [key for key, _ in changed], [_encode(one) for _, one in changed]
        connection.execute(_FOLLOW, (keys, progress, owner))


def owned(connection: PatientConnection, owner: str, after: str, limit: int) -> list[str]:
    """Up to `limit` keys of copies that a machine owns, above the key `after`, in order."""
    rows = connection.execute(
        "SELECT key FROM event_copies WHERE owner = %s AND key > %s ORDER BY key LIMIT %s", (owner, after, limit)
    )
    return [row[0] for row in rows]


def existing(connection: PatientConnection, keys: Sequence[str]) -> set[str]:
    """Those of `keys` that have a copy, whoever owns it."""
    return {row[0] for row in connection.execute("SELECT key FROM event_copies WHERE key = ANY(%s)", (list(keys),))}


def read(connection: PatientConnection, keys: Sequence[str], *, owner: str) -> list[CopiedEvent]:
    """Those of the copies `keys` that a machine owns."""
    rows = connection.execute(
        "SELECT key, event, progress, moves FROM event_copies WHERE key = ANY(%s) AND owner = %s ORDER BY key",
        (list(keys), owner),
        binary=True,
    )
    return [_copied_event(*row) for row in rows]


def dead_owners(connection: PatientConnection) -> list[str]:
    """Machines that have copies and have not had their lease for `GRACE_S`."""
    rows = connection.execute(_DEAD, {"prefix": lease_name(""), "grace": GRACE_S})
    return [row[0] for row in rows]


def take_over(connection: PatientConnection, dead: str, *, owner: str, lease: Lease, limit: int) -> list[str]:
    """Become the owner of up to `limit` copies of a dead machine; returns their keys. Several machines may do this.

    If the connection breaks during the commit, the copies are perhaps owned by this machine afterwards; `owned` shows.
    """
    with connection.transaction():
        if connection.execute(_IS_DEAD, (lease_name(dead), GRACE_S)).fetchone() is None:
            return []
        rows = connection.execute(_TAKE_OVER, {"dead": dead, "limit": limit, **_member(owner, lease)}).fetchall()
    return [row[0] for row in rows]


def moved_away(connection: PatientConnection, owner: str, limit: int) -> list[str]:
    """Up to `limit` keys of copies that others have taken over from a machine."""
    rows = connection.execute("SELECT key FROM event_moves WHERE owner = %s ORDER BY key LIMIT %s", (owner, limit))
    return [row[0] for row in rows]


def forget_moves(connection: PatientConnection, owner: str, keys: Sequence[str]) -> None:
    """Remove the notes of `moved_away`, because the machine has forgotten these events."""
    connection.execute("DELETE FROM event_moves WHERE owner = %s AND key = ANY(%s)", (owner, list(keys)))


def _any_moved(connection: PatientConnection, keys: Sequence[str], *, owner: str) -> bool:
    """Whether another machine has taken one of these copies over from a machine, also if the copy is gone since."""
    found = "SELECT 1 FROM event_moves WHERE owner = %s AND key = ANY(%s) LIMIT 1"
    return connection.execute(found, (owner, list(keys))).fetchone() is not None


def _member(owner: str, lease: Lease) -> dict[str, Any]:
    return {"owner": owner, "lease": lease.name, "token": lease.token}


def _copied_event(key: str, event: bytes, progress: bytes | None, moves: int) -> CopiedEvent:
    new, accepted_at = _NEW_EVENT.decode(event)
    if progress is None:
        known = Progress(state=QUEUED, available_at=0.0, accepted_at=accepted_at)
    else:
        known = _PROGRESS.decode(progress)
    interruptions = max(known.interruptions, int(moves > _UNSUSPECTED_MOVES))
    return CopiedEvent(key, new, msgspec.structs.replace(known, interruptions=interruptions))
