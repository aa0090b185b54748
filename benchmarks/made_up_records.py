"""Fills a file with made-up records of invocations, for measurements and tests of pages that list very many of them.

thawd makes the file, so that it has its schema; SQLite makes the rows, which takes a tenth of the time.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from thawd.stores.invocations.record_file import RecordFile

FUNCTIONS = 50
"""The functions are called ``fn0``, ``fn1`` and so on."""
APART_US = 50_000
"""Time from one invocation to the next, microseconds."""
_FAILED = "i % 37 = 0"
_INVOCATIONS = f"""
INSERT INTO invocations
WITH RECURSIVE numbers(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < :records)
SELECT :first + i * {APART_US}, (:first + i * {APART_US}) / 1000,
    printf('%08x-0000-4000-8000-000000000000', i), 'fn' || (i % {FUNCTIONS}), '', '$LATEST',
    'POST /route/' || (i % 9), CASE i % 500 WHEN 499 THEN 'thaw' ELSE 'warm' END, iif({_FAILED}, 500, 200), {_FAILED},
    iif({_FAILED}, 'Error' || (i % 5), ''), iif({_FAILED}, 'something went wrong with item ' || i, ''),
    12.5, 0.1, 0.2, 0.0, 0.0, 0.0, 11.0, 300, 200, 1,
    '2026/11/28/[$LATEST]0888d9e0840db954fe37bc1166aae07f', printf('1-6b0ab2f1-%024x', i)
FROM numbers
"""
_BODIES = (
    "INSERT INTO bodies SELECT id, CAST('{\"n\":1}' AS BLOB), CAST('{}' AS BLOB), 'whole', 'whole' FROM invocations"
)
_MINUTES = """
INSERT INTO minutes
SELECT function, id / 60000000, 1,
    CAST(printf('{"latencies":{"warm":{"%d":%d}},"errors":%d}', id % 3 - 13, count(*), sum(failed)) AS BLOB)
FROM invocations GROUP BY function, id / 60000000
"""


def fill(path: Path, records: int) -> None:
    """Write a new file with records of `FUNCTIONS` functions until now. Every 37th invocation has failed.

    Args:
        path: the file.
        records: how many.
    """
    RecordFile(path, max_bytes=4 << 30, max_age_s=1e12, report=print).close()
    first = int(time.time() * 1e6) - records * APART_US
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # Indexes are made from all rows together, which takes half of the time of one row after the other.
        indexes = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql NOT NULL")
        found = indexes.fetchall()
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for name, _ in found:
            connection.execute(f"DROP INDEX {name}")
        connection.execute(_INVOCATIONS, {"records": records, "first": first})
        connection.execute(_BODIES)
        connection.execute(_MINUTES)
        for _, sql in found:
            connection.execute(sql)
        connection.execute("COMMIT")
