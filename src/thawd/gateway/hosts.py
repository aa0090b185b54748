"""Decides, by host name and sending web page, which requests a server without a key accepts. No I/O.

Without a key thawd listens on loopback only. Every program on this machine may call it, but a web page of another site
that is open in a browser on this machine may not. These headers show whether such a page sends a request. The browser
sets them, and the page cannot change them:

- ``Host``. In a DNS rebinding attack the owner of a host name makes it resolve to 127.0.0.1. The browser then treats
  the page and thawd as one origin, and only the host name reveals the attack. Names under ``localhost`` are accepted,
  because they always mean this machine.
- ``Origin`` and ``Sec-Fetch-Site``. ``Origin`` names the site of the page. Browsers leave it out when they request an
  image or follow a link; then ``Sec-Fetch-Site`` shows whether the page belongs to another site.

Source: Fetch Metadata Request Headers, 2.3; Fetch standard, "Origin" header; RFC 6761, 6.3, "localhost".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from thawd.gateway.aws.api_messages import is_aws_host
from thawd.gateway.cors import is_this_machine
from thawd.gateway.function_urls.table import id_in
from thawd.gateway.http import Scope, header, headers_by_name

# At most this many accepted ``Host`` values are remembered, so that they are not parsed again.
_MOST_REMEMBERED = 256


class Hosts:
    """The host names that a request's ``Host`` may have.

    Args:
        names: the address that thawd listens on, and the configured names (``server.names``). Loopback names and the
            host names of function URLs and of API Gateway's APIs are accepted even if they are not among `names`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.lower() for name in names}
        self._known: set[bytes] = set()

    def serves(self, scope: Scope) -> bool:
        """Whether the request's ``Host`` is accepted.

        A request without ``Host`` is accepted, too: browsers always send the header, so no web page sent the request.
        """
        host = header(scope, b"host")
        if host is None or host in self._known:
            return True
        text = host.decode("latin-1")
        name = name_in(text)
        if not (is_loopback_name(name) or name in self._names or id_in(text) is not None or is_aws_host(text)):
            return False
        if len(self._known) < _MOST_REMEMBERED:
            self._known.add(host)
        return True


def is_loopback_name(name: str) -> bool:
    """Whether `name` is ``localhost``, a name under it, or a loopback address: all of them always mean this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refusal(host: str) -> str:
    """The error text for a request with a host name that is not accepted."""
    return (
        f"Requests to the host name {name_in(host)[:100]!r} are refused, because the server has no key and a web page "
        "open on this machine could send them. Use 127.0.0.1 or localhost, add the name to server.names, or set "
        "server.key"
    )


def may_ask(scope: Scope, *, allows: Callable[[str], bool]) -> bool:
    """Whether the web page that sends the request may call thawd; True if no web page sends the request.

    Pages that this machine serves, pages of thawd's own origin and pages of allowed origins may call thawd.

    Args:
        scope: the request.
        allows: returns whether the CORS options allow an origin; the argument is "" if the origin is unknown.
    """
    by_name = headers_by_name(scope)
    origin = by_name.get(b"origin")
    if origin is not None:
        text = origin.decode("latin-1")
    else:
        site = by_name.get(b"sec-fetch-site")
        if site is None or site in (b"same-origin", b"none"):
            return True
        text = _origin_of((header(scope, b"referer") or b"").decode("latin-1"))
    host = (header(scope, b"host") or b"").decode("latin-1").lower()
    return is_this_machine(text) or text.lower() in (f"http://{host}", f"https://{host}") or allows(text)


def name_in(host: str) -> str:
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
