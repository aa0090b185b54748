"""Claims about the channel over which a function's process uses tables and buckets."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvloop

from thawd.environments.store_call_channel import CallChannel
from thawd.wire import frames


def test_a_call_that_outlasts_its_process_ends_without_a_failure() -> None:
    failures: list[dict[str, Any]] = []

    async def outlasts() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        began, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def services(head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
            began.set()
            await goes_on.wait()
            loop.call_soon(ended.set)
            return head, body

        ours, its = socket.socketpair()
        ours.setblocking(False)
        channel = CallChannel(services, on_invalid=lambda: None)
        await channel.open(ours)
        with its:
            its.sendall(frames.HEADER.pack(2, 0, frames.CALL) + b"{}")
            await began.wait()
            channel.close()
            await asyncio.to_thread(its.recv, 1)  # the channel is closed
            goes_on.set()
            await ended.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(outlasts())
    import gc

    gc.collect()
    assert failures == []
