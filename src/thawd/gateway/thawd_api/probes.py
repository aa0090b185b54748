"""Whether the server is alive, and whether it is ready: for load balancers, systemd and Kubernetes, without a key.

``GET /_thawd/health`` is answered with 200 as long as the server answers at all. ``GET /_thawd/ready`` is answered with
503 until all functions are published for the first time, during ``server.drain_s`` of a stop, and while the server can
store nothing. Both answers say nothing about functions.
"""

from __future__ import annotations

from collections.abc import Callable

from thawd.errors import MethodNotAllowedException
from thawd.gateway.http import READING, Scope, Send, respond_error, respond_json
from thawd.invocation import new_request_id

HEALTH, READY = "/_thawd/health", "/_thawd/ready"
PROBES = frozenset({HEALTH, READY})
READINESS = "ready"


async def answer_probe(scope: Scope, send: Send, *, readiness: Callable[[], str]) -> None:
    """Answer a request for one of `PROBES`.

    Args:
        scope: the request.
        send: ASGI's callable.
        readiness: returns `READINESS` if the server is ready, otherwise what it does instead.
    """
    path = scope["path"]
    if scope["method"] not in READING:
        refused = MethodNotAllowedException(f"{path} accepts GET, not {scope['method']}", allowed=READING)
        await respond_error(send, refused, request_id=new_request_id())
        return
    state = "ok" if path == HEALTH else readiness()
    await respond_json(send, 200 if state in ("ok", READINESS) else 503, {"status": state})
