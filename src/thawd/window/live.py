"""Tells open pages that something was recorded, by server-sent events; each page then fetches itself again.

Source: HTML standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from thawd.gateway.http import Receive, Send
from thawd.system.retry import is_set_within

MOST = 50
"""Most pages that are told; others are not refreshed."""
_SHORTEST_S = 1.0
_LONGEST_S = 10.0
_LOOK_S = 2.0


class Live:
    """The open pages of one server."""

    def __init__(self) -> None:
        self._change = asyncio.Event()
        self._version = 0
        self._count = 0
        self._is_closed = False

    def changed(self) -> None:
        """Tell the pages that something was recorded."""
        self._version += 1
        self._wake()

    def _wake(self) -> None:
        """Let every stream look once whether something has changed."""
        self._change.set()
        self._change = asyncio.Event()

    def close(self) -> None:
        """End the streams, because the server stops."""
        self._is_closed = True
        self.changed()

    @property
    def is_full(self) -> bool:
        """Whether no further page can be told."""
        return self._count >= MOST or self._is_closed

    async def serve(
        self, receive: Receive, send: Send, *, look: Callable[[], Awaitable[str]] | None = None, shown: str = ""
    ) -> None:
        """Send events until the server stops or the client has gone.

        Args:
            receive: ASGI's.
            send: ASGI's.
            look: returns a fingerprint of something else that the page shows; looked at every two seconds.
            shown: that fingerprint when the page was made.
        """
        self._count += 1
        gone = asyncio.ensure_future(_gone(receive))
        gone.add_done_callback(lambda _: self._wake())
        try:
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"retry: 5000\n\n", "more_body": True})
            seen = self._version
            while not (self._is_closed or gone.done()):
                if self._version == seen:
                    await is_set_within(self._change, _LONGEST_S if look is None else _LOOK_S)
                before, shown = shown, shown if look is None else await look()
                is_same = self._version == seen and before == shown
                body = b": still here\n\n" if is_same else b"event: changed\ndata: 1\n\n"
                seen = self._version
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.wait({gone}, timeout=0.0 if self._is_closed else _SHORTEST_S)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._count -= 1


async def _gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
