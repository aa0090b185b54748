"""The time between a signal to stop and the stop, in which clients and load balancers turn away from this server."""

from __future__ import annotations

import asyncio

from thawd.server.web import Uvicorn
from thawd.system.retry import is_set_within
from thawd.telemetry.console import say


async def serve_on(web: Uvicorn, drain_s: float, *, hurry: asyncio.Event) -> None:
    """Serve new requests for a while, and close each connection after its next answer.

    An answer with ``Connection: close`` tells the client that it must not send another request over the connection.
    Otherwise a request could be lost that is sent while the server closes the connection. Source: RFC 9112, 9.6.

    Args:
        web: the HTTP server.
        drain_s: how long, seconds; 0: not at all.
        hurry: ends the time early.
    """
    if not drain_s:
        return
    say(f"stopping in {drain_s:g} s: requests are served until then, and /_thawd/ready answers 503")
    web.end_connections()
    await is_set_within(hurry, drain_s)
