"""Dead letters that were removed: kept aside for some minutes, so that a removal can be undone, and then deleted.

A removed dead letter has the state ``REMOVED`` of its own, so nothing lists, runs or counts it. The tables ``removals``
and ``removed`` say when it was removed and together with which others. Each step is a transaction of the state file:
a process that dies halfway leaves every dead letter either as it was or removed, and what is removed can be undone.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence

import msgspec

from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.schema import DEAD, REMOVED

KEPT_S = 600.0
"""How long a removal can be undone, seconds."""
MOST_LETTERS = 10_000
"""Most dead letters that are kept aside at the same time."""
MOST_BYTES = 256 << 20
"""Most bytes of events that are kept aside at the same time."""
# Most rows changed in one transaction, so that other writers can write between two transactions.
_AT_ONCE = 500


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A removal that can be undone.

    Attributes:
        id: identifies it; a later removal has a larger one.
        count: how many dead letters it would bring back.
        removed_at: when it was, seconds since the epoch.
        until: when it ends to be possible to undo it, seconds since the epoch.
    """

    id: int
    count: int
    removed_at: float
    until: float


class Removals:
    """The removals in the state file. All methods raise `StoreError` when the file cannot be used.

    Args:
        db: the state file.
        most_letters: most dead letters that are kept aside.
        most_bytes: most bytes of events that are kept aside.
    """

    def __init__(self, db: Database, *, most_letters: int = MOST_LETTERS, most_bytes: int = MOST_BYTES) -> None:
        self._db = db
        self._removing = asyncio.Lock()  # two removals together must not exceed what may be kept
        self._most_letters = most_letters
        self._most_bytes = most_bytes

    async def fits(self, ids: Sequence[int]) -> bool:
        """Whether a removal of these dead letters could be undone: they are not too many and not too large."""
        if len(ids) > self._most_letters:
            return False
        return await self._db.read(lambda connection: _bytes(connection, ids)) <= self._most_bytes

    async def remove(self, ids: Sequence[int]) -> tuple[int, Removal | None]:
        """Remove dead letters, and keep them aside. Ids without a dead letter are ignored.

        Earlier removals are deleted for good, the oldest first, if there is no room for all.

        Returns:
            How many were removed, and the removal; None: it cannot be undone, because nothing was removed, or because
            it does not fit (see `fits`).
        """
        async with self._removing:
            return await self._remove(ids)

    async def _remove(self, ids: Sequence[int]) -> tuple[int, Removal | None]:
        if not await self.fits(ids):
            removed = 0
            for part in _parts(ids):
                removed += await self._db.write(lambda connection, part=part: _delete(connection, part, DEAD))  # type: ignore[misc]
            return removed, None
        await self.purge(keep=(self._most_letters - len(ids), self._most_bytes, ids))
        now, removal_id, removed = clock.now(), None, 0
        for part in _parts(ids):

            def work(
                connection: sqlite3.Connection, part: Sequence[int] = part, known: int | None = removal_id
            ) -> tuple[int | None, int]:
                return _set_aside(connection, part, known, now)

            removal_id, count = await self._db.write(work)
            removed += count
        if removal_id is None:
            return 0, None
        return removed, Removal(id=removal_id, count=removed, removed_at=now, until=now + KEPT_S)

    async def undo(self, removal_id: int) -> int:
        """Make dead letters again of all that a removal has removed.

        Returns:
            How many there were; 0: there is no such removal, it was undone before, or it is too old.
        """
        restored = 0
        while part := await self._db.write(lambda connection: _restore(connection, removal_id)):
            restored += part
        return restored

    async def list(self) -> list[Removal]:
        """The removals that can be undone, the newest first."""
        return await self._db.read(_removals)

    async def purge(self, *, keep: tuple[int, int, Sequence[int]] | None = None) -> None:
        """Delete for good what was removed too long ago.

        Args:
            keep: also delete the oldest removals, until there are at most this many dead letters, and with the dead
                letters of these ids at most so many bytes.
        """
        while True:
            await self._delete_all(await self._db.read(_expired))
            if keep is None:
                return
            letters, most_bytes, ids = keep

            def oldest_too_many(
                connection: sqlite3.Connection, ids: Sequence[int] = ids, letters: int = letters, most: int = most_bytes
            ) -> list[int]:
                (count, size) = connection.execute(
                    "SELECT count(*), coalesce(sum(length(p.body)), 0) FROM removed r "
                    "JOIN payloads p ON p.event = r.event"
                ).fetchone()
                if not count or (count <= letters and size + _bytes(connection, ids) <= most):
                    return []
                (oldest,) = connection.execute("SELECT min(id) FROM removals").fetchone()
                return _of_removal(connection, oldest)

            found = await self._db.read(oldest_too_many)
            if not found:
                return
            await self._delete_all(found)

    async def _delete_all(self, ids: Sequence[int]) -> None:
        for part in _parts(ids):
            await self._db.write(lambda connection, part=part: _delete(connection, part, REMOVED))  # type: ignore[misc]


def _set_aside(
    connection: sqlite3.Connection, ids: Sequence[int], removal_id: int | None, now: float
) -> tuple[int | None, int]:
    """Remove dead letters, as a part of a removal, which is made with the first one. Returns its id, and how many."""
    found = [
        row[0]
        for number in ids
        if (row := connection.execute("SELECT id FROM events WHERE id = ? AND state = ?", (number, DEAD)).fetchone())
    ]
    if found:
        # Somebody may have undone the first part meanwhile: then the removal is made again, with its id.
        connection.execute("INSERT OR IGNORE INTO removals (id, removed_at) VALUES (?, ?)", (removal_id, now))
        if removal_id is None:
            (removal_id,) = connection.execute("SELECT max(id) FROM removals").fetchone()
    for number in found:
        # A copy of the event outside this machine goes now: nobody else must run a dead letter that was removed.
        connection.execute(
            "INSERT OR REPLACE INTO copy_changes (copy_key, event) "
            "SELECT copy_key, id FROM events WHERE id = ? AND copy_key IS NOT NULL",
            (number,),
        )
        connection.execute("UPDATE events SET state = ?, copy_key = NULL WHERE id = ?", (REMOVED, number))
        connection.execute("INSERT INTO removed VALUES (?, ?)", (number, removal_id))
    return removal_id, len(found)


def _restore(connection: sqlite3.Connection, removal_id: int) -> int:
    now = clock.now()
    row = connection.execute("SELECT removed_at FROM removals WHERE id = ?", (removal_id,)).fetchone()
    if row is None or not _can_be_undone(row[0], now):
        return 0
    found = _of_removal(connection, removal_id, limit=_AT_ONCE)
    for number in found:
        connection.execute("UPDATE events SET state = ? WHERE id = ? AND state = ?", (DEAD, number, REMOVED))
    _forget(connection, found)
    return len(found)


def _can_be_undone(removed_at: float, now: float) -> bool:
    return abs(now - removed_at) < KEPT_S  # the clock may have been set back


def _removals(connection: sqlite3.Connection) -> list[Removal]:
    rows = connection.execute(
        "SELECT m.id, count(*), m.removed_at FROM removals m JOIN removed r ON r.removal = m.id GROUP BY m.id "
        "ORDER BY m.id DESC"
    )
    now = clock.now()
    return [
        Removal(id=number, count=count, removed_at=at, until=at + KEPT_S)
        for number, count, at in rows
        if _can_be_undone(at, now)
    ]


def _expired(connection: sqlite3.Connection) -> list[int]:
    now = clock.now()
    rows = connection.execute("SELECT id, removed_at FROM removals ORDER BY id").fetchall()
    return [
        number
        for removal_id, removed_at in rows
        if not _can_be_undone(removed_at, now)
        for number in _of_removal(connection, removal_id)
    ]


def _of_removal(connection: sqlite3.Connection, removal_id: int, *, limit: int = -1) -> list[int]:
    rows = connection.execute("SELECT event FROM removed WHERE removal = ? ORDER BY event LIMIT ?", (removal_id, limit))
    return [row[0] for row in rows]


def _delete(connection: sqlite3.Connection, ids: Sequence[int], state: int) -> int:
    """Delete events that are in a state; returns how many were."""
    deleted = sum(
        connection.execute("DELETE FROM events WHERE id = ? AND state = ?", (number, state)).rowcount for number in ids
    )
    if state == REMOVED:
        _forget(connection, ids)
    return deleted


def _forget(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Forget that events were removed, and removals that have none left. Events that are still removed stay listed."""
    for number in ids:
        connection.execute(
            "DELETE FROM removed WHERE event = ? AND NOT EXISTS (SELECT 1 FROM events WHERE id = ? AND state = ?)",
            (number, number, REMOVED),
        )
    connection.execute("DELETE FROM removals WHERE id NOT IN (SELECT removal FROM removed)")


def _bytes(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """How many bytes the events of dead letters have together. Their payloads are not read."""
    total = 0
    for part in _parts(ids):
        (size,) = connection.execute(
            f"SELECT coalesce(sum(length(body)), 0) FROM payloads WHERE event IN ({', '.join('?' * len(part))})", part
        ).fetchone()
        total += size
    return total


def _parts(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]
