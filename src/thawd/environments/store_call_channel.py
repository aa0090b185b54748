"""The channel over which a function's process uses the platform's tables and buckets, through ``import thawd``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from thawd.environments.channels import FrameProtocol, attach
from thawd.wire import frames

ServiceHandler = Callable[[dict[str, Any], bytes], Awaitable[tuple[dict[str, Any], bytes]]]

_encode = msgspec.json.Encoder().encode


class CallChannel:
    """The platform's end of the channel that carries one process's calls.

    Args:
        services: carries out a call; gets its head and body, and returns those of the reply.
        on_invalid: called when a frame arrives that is not a call.
    """

    def __init__(self, services: ServiceHandler, *, on_invalid: Callable[[], None]) -> None:
        self._services = services
        self._on_invalid = on_invalid
        self._protocol = FrameProtocol(self._on_frame, lambda: None)
        self._calls: set[asyncio.Task[None]] = set()

    async def open(self, sock: socket.socket) -> None:
        """Answer the calls that arrive over `sock` from now on."""
        await attach(self._protocol, sock)

    def close(self) -> None:
        """Stop answering calls."""
        self._protocol.close()

    def _on_frame(self, kind: int, head: Any, body: bytes) -> None:
        if kind != frames.CALL or not isinstance(head, dict):
            self._on_invalid()
            return
        task = asyncio.get_running_loop().create_task(self._answer(head, body))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _answer(self, head: dict[str, Any], body: bytes) -> None:
        reply, data = await self._services(head, body)
        self._protocol.send(frames.REPLY, _encode({**reply, "n": head.get("n")}), data)
