"""Which requests a server without a key accepts, by host name and by the page that sends them. Pure.

Without a key thawd listens on loopback, and every program of this machine's users may call it. A page of another site,
open in a browser on this machine, may not. Two headers that the page cannot change identify its requests:

- ``Host``. In a DNS rebinding attack the owner of a name lets it resolve to 127.0.0.1. The browser then takes the page
  and thawd for one origin, and only the name shows the attack. Names under ``localhost`` always mean this machine.
- ``Origin`` and ``Sec-Fetch-Site``. An image or a link sends no ``Origin``; ``Sec-Fetch-Site`` then shows that the
  page belongs to another site.

Source: Fetch Metadata Request Headers, 2.3; Fetch standard, "Origin" header; RFC 6761, 6.3, "localhost".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from thawd.gateway.cors import is_this_machine
from thawd.gateway.function_urls.table import id_in
from thawd.gateway.http import Scope, header

_MOST_REMEMBERED = 256


class Hosts:
    """The host names that requests may name.

    Args:
        names: the address thawd listens on and the configured names. Loopback names and the host names of function
            URLs are always accepted.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.lower() for name in names}
        self._known: set[bytes] = set()

    def serves(self, scope: Scope) -> bool:
        """Whether the request's ``Host`` is accepted. One without ``Host`` is, since no browser sends that."""
        host = header(scope, b"host")
        if host is None or host in self._known:
            return True
        text = host.decode("latin-1")
        name = _name_in(text)
        if not (is_loopback_name(name) or name in self._names or id_in(text) is not None):
            return False
        if len(self._known) < _MOST_REMEMBERED:
            self._known.add(host)
        return True


def is_loopback_name(name: str) -> bool:
    """Whether `name` means this machine for every resolver."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refusal(host: str) -> str:
    """The error text for a request with a host name that is not accepted."""
    return (
        f"Nothing is served by the name {_name_in(host)[:100]!r} while there is no server.key: a page in a browser "
        "here could call this machine by it. Call 127.0.0.1 or localhost, name it in server.names, or set a key"
    )


def may_ask(scope: Scope, *, allows: Callable[[str], bool]) -> bool:
    """Whether the request may be made: no page sends it, or a page of this machine, of the same origin or allowed.

    Args:
        scope: the request.
        allows: whether CORS options allow an origin; called with "" for a page that does not send its origin.
    """
    origin = header(scope, b"origin")
    if origin is not None:
        text = origin.decode("latin-1")
    else:
        site = header(scope, b"sec-fetch-site")
        if site is None or site in (b"same-origin", b"none"):
            return True
        text = _origin_of((header(scope, b"referer") or b"").decode("latin-1"))
    host = (header(scope, b"host") or b"").decode("latin-1").lower()
    return is_this_machine(text) or text.lower() in (f"http://{host}", f"https://{host}") or allows(text)


def _name_in(host: str) -> str:
    """The name or address in ``Host``, without brackets and port."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    start, colon, port = name.rpartition(":")
    return (start if colon and port.isdigit() else name).removesuffix(".")


def _origin_of(address: str) -> str:
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
