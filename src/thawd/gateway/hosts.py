"""Who may ask while nobody has to show a key: by which name, and from which page. Pure.

Without a key thawd listens on loopback, and whoever runs programs on this machine may call it. A page in a browser on
this machine is somebody else's program, and is told by two things that it cannot change:

- The name in ``Host``. A page of a name that its owner lets resolve to 127.0.0.1 (DNS rebinding) is of the same origin
  as what it calls, so that nothing but the name is foreign. Names under ``localhost`` are of this machine alone.
- ``Origin`` and ``Sec-Fetch-Site``. A request without ``Origin``, which an image or a link sends, says by the latter
  that a page of another site makes it.

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
    """The names by which requests are served.

    Args:
        names: besides those of loopback and of function URLs: where thawd listens, and what else is configured.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.lower() for name in names}
        self._known: set[bytes] = set()

    def serves(self, scope: Scope) -> bool:
        """Whether a request says a name by which it may be served, or, as no browser does, none."""
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
    """Whether a host is this machine whatever resolves it."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refusal(host: str) -> str:
    """What a request is told that says a name by which nothing is served."""
    return (
        f"Nothing is served by the name {_name_in(host)[:100]!r} while there is no server.key: a page in a browser "
        "here could call this machine by it. Call 127.0.0.1 or localhost, name it in server.names, or set a key"
    )


def may_ask(scope: Scope, *, allows: Callable[[str], bool]) -> bool:
    """Whether the page that makes a request, if it is one that does, may make it.

    Args:
        scope: the request.
        allows: whether CORS options name an origin; asked with an empty one where the page does not say its own.
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
