"""redis-py: a client with a connection in its pool at the freeze."""

from __future__ import annotations

from typing import Any

import redis
import repeated


class Redis:
    """A client."""

    def __init__(self, options: repeated.Options) -> None:
        self._client = redis.Redis.from_url(options.address)

    def answer(self, number: int) -> Any:
        key = f"{repeated.name()} {number}"
        with self._client.pipeline() as together:
            together.set(key, number * number).get(key).client_id()
            _, value, connection = together.execute()
        repeated.connections.append(connection)
        self._client.rpush(repeated.name(), number)  # a command that must not run twice
        return [int(value), int(self._client.get(key))]

    def finish(self) -> None:
        """Check that each command ran once."""
        numbers = [int(number) for number in self._client.lrange(repeated.name(), 0, -1)]
        before = list(repeated.BEFORE) if repeated.name() == "cold" else []
        assert numbers == before + list(repeated.NUMBERS) * 2, numbers


if __name__ == "__main__":
    repeated.main(Redis)
