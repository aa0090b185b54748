"""Deliveries to URLs: one POST each, signed if a secret is configured. httpx is optional, and imported when needed.

Header names and the signature follow Standard Webhooks 1.0 (https://www.standardwebhooks.com), so that receivers can
check them with the libraries of that standard.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

from thawd import __version__
from thawd.config import is_loopback
from thawd.errors import DestinationRefused, DestinationUnavailable
from thawd.grammar.destination_names import address_of
from thawd.resources import Destination

if TYPE_CHECKING:
    import httpx

_SECRET_PREFIX = "whsec_"
# An answer of up to this many bytes is read completely, so that its connection can be used again. The rest of a longer
# answer is not read.
_READ_BYTES = 65_536
# After these statuses a later attempt may succeed: Request Timeout, Conflict, Too Early, Too Many Requests. The same
# applies to every 5xx.
_PASSING = (408, 409, 425, 429)


class Webhooks:
    """HTTP clients for the URLs that are destinations. The caller limits how many requests run at the same time.

    Args:
        secret: key that signs records; None: records are not signed.
    """

    def __init__(self, secret: str | None) -> None:
        self._key = None if secret is None else _key_of(secret)
        self._clients: dict[Destination, httpx.AsyncClient] = {}

    async def post(self, destination: Destination, body: bytes, *, request_id: str, key: str) -> None:
        """Send a record. When this returns, the receiver has accepted it.

        Args:
            destination: the URL, as a destination.
            body: the record.
            request_id: request id of the invocation.
            key: identifies this record: the same on each attempt, and different for each record.

        Raises:
            DestinationUnavailable: the receiver does not answer or accepts nothing now. A later attempt may succeed.
            DestinationRefused: the receiver refuses the record for good.
        """
        client = self._client(destination)
        import httpx

        headers = {
            "content-type": "application/json",
            "user-agent": f"thawd/{__version__}",
            "x-amzn-requestid": request_id,
            "idempotency-key": key,
            **self._signature(key, body),
        }
        try:
            async with client.stream("POST", destination.name, content=body, headers=headers) as response:
                await _read_some(response)
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise DestinationRefused(f"no request can be sent to {destination}: {error}") from None
        except (httpx.HTTPError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise DestinationUnavailable(f"{destination} could not be reached: {reason}") from error
        _check(destination, response.status_code)

    def _signature(self, key: str, body: bytes) -> dict[str, str]:
        at = str(int(time.time()))
        headers = {"webhook-id": key, "webhook-timestamp": at}
        if self._key is not None:
            digest = hmac.digest(self._key, f"{key}.{at}.".encode() + body, hashlib.sha256)
            headers["webhook-signature"] = "v1," + base64.b64encode(digest).decode()
        return headers

    def _client(self, destination: Destination) -> httpx.AsyncClient:
        if destination not in self._clients:
            try:
                import httpx
            except ModuleNotFoundError:
                raise DestinationUnavailable(
                    "http:// and https:// destinations need httpx, which is not installed; install it with: "
                    "pip install 'thawd[webhook]', then restart thawd"
                ) from None
            address = address_of(destination)
            is_local = address is not None and is_loopback(address.hostname or "")
            self._clients[destination] = httpx.AsyncClient(
                timeout=None,  # `Destinations` limits the time of the whole delivery
                cookies=CookieJar(
                    DefaultCookiePolicy(allowed_domains=[])
                ),  # a cookie from one answer must not be sent with another request
                # Environment variables can name a proxy on another machine. That proxy could not reach this machine's
                # loopback addresses.
                trust_env=not is_local,
            )
        return self._clients[destination]

    async def close(self) -> None:
        """Close all connections."""
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.aclose()


def _key_of(secret: str) -> bytes:
    """Return the signing key: the decoded rest of a secret that is ``whsec_`` and Base64; any other secret itself."""
    if secret.startswith(_SECRET_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


async def _read_some(response: httpx.Response) -> None:
    read = 0
    async for part in response.aiter_raw():
        read += len(part)
        if read > _READ_BYTES:
            return


def _check(destination: Destination, status: int) -> None:
    """Raise unless the status says that the record was accepted.

    Raises:
        DestinationUnavailable: the record was not accepted, but may be accepted later.
        DestinationRefused: the record was not accepted, and never will be.
    """
    if 200 <= status < 300:
        return
    if status >= 500 or status in _PASSING:
        raise DestinationUnavailable(f"{destination} answered {status}")
    moved = "; redirects are not followed, so configure the final URL" if 300 <= status < 400 else ""
    raise DestinationRefused(f"{destination} answered {status}{moved}")
