"""psycopg: a connection that each copy finds lost, and an after-restore hook that opens another."""

from __future__ import annotations

from typing import Any

import psycopg
import repeated

from thawd import snapshot


class Psycopg:
    """One connection, with a prepared statement."""

    def __init__(self, options: repeated.Options) -> None:
        self._address = options.address
        self._connection = self._connect()
        snapshot.register_after_restore(self._check_and_connect)

    def answer(self, number: int) -> Any:
        row = self._connection.execute(
            "SELECT %s::int * %s, %s::text, pg_backend_pid()", (number, number, repeated.name()), prepare=True
        ).fetchone()
        assert row is not None and row[1] == repeated.name(), row
        repeated.connections.append(row[2])
        return row[0]

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._address, autocommit=True)

    def _check_and_connect(self) -> None:
        try:
            self._connection.execute("SELECT 1")
        except psycopg.OperationalError:
            assert self._connection.closed
        else:
            raise AssertionError("the connection of the frozen process answers")
        self._connection = self._connect()


if __name__ == "__main__":
    repeated.main(Psycopg)
