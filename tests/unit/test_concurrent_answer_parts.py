"""`thawd.runtime.http_apps.parts`: the parts of one of several answers that a process sends at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

from thawd.runtime.http_apps.parts import WINDOW_BYTES, Parts


class Sent:
    """A channel that keeps what is sent over it."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def send(self, kind: int, head: Any, body: bytes = b"") -> None:
        self.size_bytes += len(body)


def test_all_tasks_that_wait_for_room_go_on_when_the_client_takes_parts_or_goes() -> None:
    async def work(taken_bytes: int) -> int:
        channel: Any = Sent()
        parts = Parts(channel, 0, WINDOW_BYTES * 4)
        parts.stream.write(bytes(WINDOW_BYTES))
        waiting = [asyncio.create_task(parts.room()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        if taken_bytes:
            parts.taken(taken_bytes)
        else:
            parts.gone()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        return int(channel.size_bytes)

    assert asyncio.run(work(1)) == asyncio.run(work(0)) == WINDOW_BYTES
