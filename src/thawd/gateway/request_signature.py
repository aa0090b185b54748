"""Signs requests that thawd's own programs send to a thawd server."""

from __future__ import annotations

import time
from collections.abc import Mapping

from thawd.gateway.sigv4 import SignedRequest, sign
from thawd.resources import REGION


def signature(
    keys: Mapping[str, str], address: tuple[str, int], path: str, body: bytes | None, headers: Mapping[str, str]
) -> dict[str, str]:
    """Return the ``Host`` header of a request, and the headers that sign the request (Signature Version 4).

    Args:
        keys: secrets by access key id; the first one signs.
        address: host and port of the server.
        path: path with query string, percent-encoded.
        body: body of a POST; None: the request is a GET.
        headers: the other headers of the request.
    """
    host, port = address
    host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    access_key, secret = next(iter(keys.items()))
    raw_path, _, query = path.partition("?")
    signed = {"host": host, **{name.lower(): value for name, value in headers.items()}}
    sent = [(name.encode(), value.encode("latin-1")) for name, value in signed.items() if _must_be_signed(name)]
    unsigned = SignedRequest("GET" if body is None else "POST", raw_path, query, sent, body or b"")
    return {"Host": host, **sign(unsigned, access_key, secret, now_s=time.time(), scope=(REGION, "lambda"))}


def _must_be_signed(name: str) -> bool:
    return name == "host" or name.startswith("x-amz-")
