"""Refuses requests without the server's key, and requests of foreign web pages to a server without a key."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from thawd.errors import AccessDeniedException
from thawd.gateway.hosts import may_ask
from thawd.gateway.http import Scope, header


def check_key(scope: Scope, key: str | None, *, allows: Callable[[str], bool]) -> None:
    """Refuse a request without the server's key. If the server has no key, refuse one that a foreign page sends.

    A server without a key listens on loopback only. A web page of another site that is open in a browser on this
    machine must not be able to run functions, so its requests are refused unless they are for a declared route and
    http.cors allows its origin.

    Args:
        scope: the request.
        key: the server's key; None: it has none.
        allows: whether http.cors allows requests from web pages of an origin.

    Raises:
        AccessDeniedException: the key is missing or wrong, or a page of another site sends the request (403).
    """
    if key is not None:
        if not has_key(scope, key):
            raise AccessDeniedException(
                "The server's key is missing or wrong; send it as X-Api-Key: KEY or as Authorization: Bearer KEY"
            )
    elif not may_ask(scope, allows=allows):
        origin = (header(scope, b"origin") or b"").decode("latin-1")
        raise AccessDeniedException(
            f"Requests from web pages of {origin or 'an unknown origin'} are refused, because the server has no "
            "key; set server.key and send the key with each request, or, for a declared route, add the origin to "
            "http.cors"
        )


def has_key(scope: Scope, key: str | None) -> bool:
    """Whether the server has a key and the request contains it, in ``X-Api-Key`` or ``Authorization``."""
    if key is None:
        return False
    presented = header(scope, b"x-api-key")
    if presented is None:
        presented = (header(scope, b"authorization") or b"").removeprefix(b"Bearer ")
    return hmac.compare_digest(presented, key.encode())
