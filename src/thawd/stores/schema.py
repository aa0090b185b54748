"""The schema of thawd's own state file, ``thawd.db``.

It contains events, the objects and listings of buckets, the control plane's catalog, schedules, and positions in
streams. These data share a file so that, for example, an object and the events that it causes can be stored in one
transaction. Only append migrations; never change one that has been released.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from thawd.stores import log_events, metric_history, written_by
from thawd.stores.database import Database

QUEUED, DEAD, DELIVERING, REMOVED = 0, 2, 3, 4
"""States of an event. A QUEUED event is ready if ``available_at`` is 0; otherwise it waits until that time."""

# Payloads have their own table, so that a change of state does not rewrite up to 1 MiB. Triggers maintain the number of
# events in each state, so that reading these numbers takes the same time with ten events as with ten million.
_QUEUE = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    function TEXT NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    available_at REAL NOT NULL DEFAULT 0,
    accepted_at REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    request_id TEXT NOT NULL,
    source TEXT NOT NULL,
    row_key TEXT,
    client_context TEXT,
    trace_id TEXT,
    error TEXT,
    condition TEXT
) STRICT;
CREATE INDEX events_by_turn ON events (function, state, available_at);
CREATE TABLE payloads (event INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE depths (
    function TEXT NOT NULL, state INTEGER NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (function, state)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER events_inserted AFTER INSERT ON events BEGIN
    INSERT INTO depths VALUES (NEW.function, NEW.state, 1)
        ON CONFLICT (function, state) DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER events_deleted AFTER DELETE ON events BEGIN
    UPDATE depths SET count = count - 1 WHERE function = OLD.function AND state = OLD.state;
    DELETE FROM payloads WHERE event = OLD.id;
END;
CREATE TRIGGER events_moved AFTER UPDATE OF state ON events WHEN NEW.state <> OLD.state BEGIN
    UPDATE depths SET count = count - 1 WHERE function = OLD.function AND state = OLD.state;
    INSERT INTO depths VALUES (NEW.function, NEW.state, 1)
        ON CONFLICT (function, state) DO UPDATE SET count = count + 1;
END;
"""

# A key is bytes: file names need not be UTF-8. An inode number is stored as a signed 64-bit integer.
_OBJECTS = """
CREATE TABLE objects (
    bucket TEXT NOT NULL,
    key BLOB NOT NULL,
    inode INTEGER NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    etag TEXT NOT NULL,
    sequencer INTEGER NOT NULL,
    PRIMARY KEY (bucket, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE sequencer (last INTEGER NOT NULL) STRICT;
INSERT INTO sequencer VALUES (0);
"""

# Adds the documents of the control plane, and the version or alias that an event invokes (NULL: $LATEST).
_CATALOG = """
CREATE TABLE catalog (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (kind, name, qualifier)
) STRICT, WITHOUT ROWID;
ALTER TABLE events ADD COLUMN qualifier TEXT;
"""

# From this migration on, leases exist only in memory; before, state 1 meant a lease. thawd itself counts inserted rows,
# in batches (`insert_all`), while a trigger counts deleted rows one by one. An outcome that waits to be delivered is
# stored together with its event.
_OUTBOX = """
UPDATE events SET state = 0, available_at = 0 WHERE state = 1;
DROP TRIGGER events_inserted;
DROP TRIGGER events_deleted;
ALTER TABLE events ADD COLUMN interruptions INTEGER NOT NULL DEFAULT 0;
CREATE TABLE deliveries (
    event INTEGER PRIMARY KEY, document BLOB NOT NULL, since REAL NOT NULL, tries INTEGER NOT NULL
) STRICT;
CREATE TABLE flow (
    function TEXT PRIMARY KEY,
    accepted INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    retried INTEGER NOT NULL DEFAULT 0,
    buried INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TRIGGER events_deleted AFTER DELETE ON events BEGIN
    UPDATE depths SET count = count - 1 WHERE function = OLD.function AND state = OLD.state;
    DELETE FROM payloads WHERE event = OLD.id;
    DELETE FROM deliveries WHERE event = OLD.id;
END;
"""

# The progress of the listings of remote buckets. `completed_at` is NULL until the first listing is complete.
_LISTINGS = """
CREATE TABLE listings (bucket TEXT PRIMARY KEY, begun_at REAL NOT NULL, completed_at REAL) STRICT, WITHOUT ROWID;
"""

# The progress of each schedule: all its times up to `done_until` have been handled.
_SCHEDULES = """
CREATE TABLE schedules (
    name TEXT PRIMARY KEY,
    definition TEXT NOT NULL,
    anchor REAL NOT NULL,
    done_until REAL NOT NULL,
    last_run REAL,
    last_late_s REAL NOT NULL DEFAULT 0,
    runs INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
"""

# How far event source mappings have processed their streams; the positions are JSON.
_STREAMS = """
CREATE TABLE stream_positions (
    mapping TEXT NOT NULL, shard TEXT NOT NULL, position BLOB NOT NULL, PRIMARY KEY (mapping, shard)
) STRICT, WITHOUT ROWID;
"""

# The tenant that an event names (NULL: none).
_TENANTS = """
ALTER TABLE events ADD COLUMN tenant TEXT;
"""

# Copies of events in a cluster's database (NULL: there is none). `copy_changes` lists the copies that must follow a
# change of their event. Each change of an event gets a new number, also if the event is listed already.
_COPIES = """
ALTER TABLE events ADD COLUMN copy_key TEXT;
CREATE UNIQUE INDEX events_by_copy ON events (copy_key) WHERE copy_key IS NOT NULL;
CREATE TABLE copy_changes (
    change INTEGER PRIMARY KEY AUTOINCREMENT, copy_key TEXT NOT NULL UNIQUE, event INTEGER NOT NULL
) STRICT;
CREATE TRIGGER copied_event_deleted AFTER DELETE ON events WHEN OLD.copy_key IS NOT NULL BEGIN
    INSERT OR REPLACE INTO copy_changes (copy_key, event) VALUES (OLD.copy_key, OLD.id);
END;
CREATE TRIGGER copied_event_changed AFTER UPDATE ON events WHEN NEW.copy_key IS NOT NULL BEGIN
    INSERT OR REPLACE INTO copy_changes (copy_key, event) VALUES (NEW.copy_key, NEW.id);
END;
"""

# Counts accepted events in both tables with one statement. Each statement makes the writer's thread wait for the event
# loop's thread a few times.
_ACCEPTANCES = """
CREATE VIEW acceptances AS SELECT function, accepted AS count FROM flow;
CREATE TRIGGER acceptances_inserted INSTEAD OF INSERT ON acceptances BEGIN
    INSERT INTO depths VALUES (NEW.function, 0, NEW.count)
        ON CONFLICT (function, state) DO UPDATE SET count = count + excluded.count;
    INSERT INTO flow (function, accepted) VALUES (NEW.function, NEW.count)
        ON CONFLICT (function) DO UPDATE SET accepted = accepted + excluded.accepted;
END;
"""

# Removals of dead letters that can be undone; the events have the state REMOVED.
_REMOVALS = """
CREATE TABLE removals (id INTEGER PRIMARY KEY AUTOINCREMENT, removed_at REAL NOT NULL) STRICT;
CREATE TABLE removed (event INTEGER PRIMARY KEY, removal INTEGER NOT NULL) STRICT;
CREATE INDEX removed_by_removal ON removed (removal, event);
"""

MIGRATIONS = (
    *(_QUEUE + _OBJECTS, _CATALOG, _OUTBOX, _SCHEDULES, _LISTINGS, _STREAMS, _TENANTS),
    log_events.SCHEMA,
    metric_history.SCHEMA,
    _COPIES,
    _ACCEPTANCES,
    _REMOVALS,
)


def count_waiting(connection: sqlite3.Connection) -> int:
    """How many events there are, without dead letters. The time for this depends only on the number of functions."""
    query = "SELECT coalesce(sum(count), 0) FROM depths WHERE state NOT IN (?, ?)"
    (count,) = connection.execute(query, (DEAD, REMOVED)).fetchone()
    return int(count)


def open_state(path: Path) -> Database:
    """Open ``thawd.db``, and create it if it is missing. `Database.gauged` is the result of `count_waiting`.

    A note beside it names the newest thawd that has used it.

    Raises:
        StoreError: the file cannot be used.
    """
    state = Database(path, migrations=MIGRATIONS, gauge=count_waiting)
    written_by.note(path.parent)
    return state
