"""Removes credentials from the headers and the query string of a request, before an event is made from the request.

Events reach handlers, logs, traces and destinations. Whoever reads an event there must not learn how to call thawd.
Removed are:

- each header, cookie and query parameter whose value is the key that thawd requires from clients (``server.key``). A
  header with another value is meant for the function, so it is kept.
- the request's signature and session token, if thawd has checked the signature. If thawd has not checked it, the
  ``Authorization`` header is meant for the function, so it is kept.

No side effects.
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
    """Return the headers and the query string of a request without the credentials in them.

    Args:
        headers: names in lower case.
        query: percent-encoded.
        key: the server's key; None: there is none.
        was_signed: whether thawd has checked the request's signature.
    """
    if was_signed:
        headers = [(name, value) for name, value in headers if name not in _OF_SIGNATURES]
        query = _filtered(query, lambda name, _: name not in _SIGNATURE_PARAMETERS)
    if key is not None:
        secret = key.encode()
        cleaned = ((name, _without_key(name, value, secret)) for name, value in headers)
        headers = [(name, value) for name, value in cleaned if value is not None]
        query = _filtered(query, lambda _, value: value != key)
    return headers, query


def _without_key(name: bytes, value: bytes, key: bytes) -> bytes | None:
    """The value of a header without the key; None to remove the header.

    A header is removed if its value is the key, perhaps after a scheme such as ``Bearer``. A ``Cookie`` header is
    removed if no cookie is left.
    """
    if key not in value:
        return value
    if name == b"cookie":
        pairs = [pair for pair in value.split(b";") if pair.partition(b"=")[2].strip().strip(b'"') != key]
        return b";".join(pairs).strip() or None
    return None if value.rpartition(b" ")[2] == key else value


def _filtered(query: str, keeps: Callable[[str, str], bool]) -> str:
    """The query string without the parameters that `keeps` rejects, otherwise as sent."""
    if not query:
        return query
    pairs = []
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if keeps(unquote_plus(name), unquote_plus(value)):
            pairs.append(pair)
    return "&".join(pairs)
