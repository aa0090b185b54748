"""psycopg_pool: a pool that checks its connections, with two of them open and its threads running at the freeze."""

from __future__ import annotations

from typing import Any

import repeated
from psycopg_pool import ConnectionPool


class PsycopgPool:
    """A pool."""

    def __init__(self, options: repeated.Options) -> None:
        self._pool = ConnectionPool(
            options.address, min_size=2, max_size=2, check=ConnectionPool.check_connection, open=True
        )
        self._pool.wait()

    def answer(self, number: int) -> Any:
        with self._pool.connection() as connection:
            row = connection.execute(
                "SELECT %s::int * %s, %s::text, pg_backend_pid()", (number, number, repeated.name())
            ).fetchone()
        assert row is not None and row[1] == repeated.name(), row
        repeated.connections.append(row[2])
        return row[0]

    def finish(self) -> None:
        """End the pool's threads; otherwise the process would wait for them."""
        self._pool.close()


if __name__ == "__main__":
    repeated.main(PsycopgPool)
