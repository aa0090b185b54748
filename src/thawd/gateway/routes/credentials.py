"""What lets a request in, taken out of its event: events reach handlers, logs, traces and destinations. Pure.

The server's key is taken out where a header, a cookie or a parameter has it as its value; with another value the same
header is the function's own business. A signature is taken out where it was thawd that checked it: an `Authorization`
that thawd did not look at is the function's as well.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote_plus

from thawd.gateway.http import Headers

_OF_SIGNATURES = (b"authorization", b"x-amz-security-token")
_SIGNATURE_PARAMETERS = ("X-Amz-Signature", "X-Amz-Security-Token")


def without_credentials(
    headers: Headers, query: str, *, key: str | None, was_signed: bool = False
) -> tuple[Headers, str]:
    """Headers and query string of a request without what let it in.

    Args:
        headers: names in lower case.
        query: percent-encoded.
        key: the server's; None: it has none.
        was_signed: whether its signature was checked.
    """
    if was_signed:
        headers = [(name, value) for name, value in headers if name not in _OF_SIGNATURES]
        query = _kept(query, lambda name, _: name not in _SIGNATURE_PARAMETERS)
    if key is not None:
        secret = key.encode()
        cleaned = ((name, _without_key(name, value, secret)) for name, value in headers)
        headers = [(name, value) for name, value in cleaned if value is not None]
        query = _kept(query, lambda _, value: value != key)
    return headers, query


def _without_key(name: bytes, value: bytes, key: bytes) -> bytes | None:
    """The value of a header without the key; None: it is the key, alone or after a scheme such as ``Bearer``."""
    if key not in value:
        return value
    if name == b"cookie":
        pairs = [pair for pair in value.split(b";") if pair.partition(b"=")[2].strip().strip(b'"') != key]
        return b";".join(pairs).strip() or None
    return None if value.rpartition(b" ")[2] == key else value


def _kept(query: str, keeps: Callable[[str, str], bool]) -> str:
    """The parameters that are kept, as they were sent."""
    if not query:
        return query
    pairs = []
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if keeps(unquote_plus(name), unquote_plus(value)):
            pairs.append(pair)
    return "&".join(pairs)
