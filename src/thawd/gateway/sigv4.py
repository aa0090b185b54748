"""AWS Signature Version 4: checks that a request has a recent signature of a known key; signs requests.

Source: AWS Identity and Access Management user guide, "Create a signed AWS API request" and "Authenticating requests
(AWS Signature Version 4)". The errors have the wording of AWS's services.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote, unquote_plus

from thawd.gateway.role_keys import RoleKeys

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_S = 300
"""The clocks of client and server may differ by at most this many seconds."""
# Seven days, AWS's limit for presigned URLs.
_LONGEST_PRESIGNED_S = 604_800
_MOST_DIGITS = 9
# A client whose signature does not cover the body sends this in place of the body's hash.
_UNSIGNED = b"UNSIGNED-PAYLOAD"
_MISMATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)
_UNSIGNED_HEADERS = "There were headers present in the request which were not signed"


class SignatureError(Exception):
    """The request is refused (403).

    Attributes:
        code: AWS's error code.
        message: the reason, without secrets.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The parts of a request that a signature covers, as received or as they will be sent.

    Attributes:
        method: in upper case.
        raw_path: percent-encoded, as sent.
        query: percent-encoded query string, as sent, without the question mark.
        headers: pairs of name and value, names in lower case.
        body: the whole body.
    """

    method: str
    raw_path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """The first header `name`, or None."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A request's signature and the fields that describe it.

    Attributes:
        access_key: access key id of the signer.
        scope: date, region and service.
        signed_headers: names of the headers that are signed, in order.
        signature: hexadecimal.
        date: ``20260101T000000Z``.
        valid_s: for how many seconds after `date` a signature in the URL is valid; None: the signature is in a header,
            and is valid for `SKEW_S` seconds.
    """

    access_key: str
    scope: tuple[str, str, str]
    signed_headers: list[str]
    signature: bytes
    date: str
    valid_s: int | None


def is_signed(request: SignedRequest) -> bool:
    """Whether the request carries a signature, valid or not."""
    authorization = request.header(b"authorization") or b""
    return authorization.startswith(b"AWS4-") or "X-Amz-Algorithm=" in request.query


def claimed_service(authorization: str, query: str) -> str | None:
    """The service that a request's signature names, even if the signature is wrong; None for an unsigned request.

    Args:
        authorization: value of the ``Authorization`` header.
        query: percent-encoded query string, which contains the signature of a presigned request.
    """
    if authorization.startswith("AWS4-"):
        credential = _fields(authorization.partition(" ")[2]).get("Credential", "")
    elif "X-Amz-Credential=" in query:
        pairs = (pair.partition("=") for pair in query.split("&"))
        credential = next((unquote(value) for name, _, value in pairs if name == "X-Amz-Credential"), "")
    else:
        return None
    parts = credential.rsplit("/", 4)
    return parts[3] if len(parts) == 5 and parts[4] == "aws4_request" and parts[3] else None


def verify(request: SignedRequest, keys: Mapping[str, str], *, now_s: float, service: str = "lambda") -> str:
    """Verify the signature of `request`; returns the access key id of the signer.

    Args:
        request: as received.
        keys: secrets by access key id.
        now_s: seconds since the epoch.
        service: the service that the signature must name.

    Raises:
        SignatureError: the request has no signature, or its signature names an unknown key or another service, has
            expired, or is wrong, or a function's key comes without its session token (403).
    """
    claim, secret = _check(request, keys, now_s=now_s, service=service)
    payload_hash = _payload_hash(request)
    for path in _canonical_paths(request.raw_path):
        for query in _canonical_queries(request.query):
            text = _canonical_request(request, claim, path=path, query=query, payload_hash=payload_hash)
            if hmac.compare_digest(_signature(claim, secret, text), claim.signature):
                return claim.access_key
    raise SignatureError("InvalidSignatureException", _MISMATCH)


def check_claim(request: SignedRequest, keys: Mapping[str, str], *, now_s: float, service: str = "lambda") -> None:
    """Check the parts of a signature that do not depend on the body: key id, service, date and signed headers.

    Raises:
        SignatureError: as `verify` (403).
    """
    _check(request, keys, now_s=now_s, service=service)


def _check(request: SignedRequest, keys: Mapping[str, str], *, now_s: float, service: str) -> tuple[_Claim, str]:
    claim = _claimed(request)
    secret = keys.get(claim.access_key)
    is_valid = secret is not None
    if isinstance(keys, RoleKeys):
        is_valid = is_valid and keys.has_token(claim.access_key, _token(request))
    if secret is None or not is_valid:
        raise SignatureError("UnrecognizedClientException", "The security token included in the request is invalid.")
    _check_scope(claim, service)
    _check_time(claim, now_s)
    _check_headers(claim, request)
    return claim, secret


def signer(request: SignedRequest) -> str | None:
    """The access key id with which a request claims to be signed; None: it is not signed, or not correctly."""
    try:
        return _claimed(request).access_key
    except SignatureError:
        return None


def _claimed(request: SignedRequest) -> _Claim:
    return _presigned(request) if "X-Amz-Algorithm=" in request.query else _in_header(request)


def _token(request: SignedRequest) -> str | None:
    """The session token of a request, which comes with temporary keys."""
    for pair in request.query.split("&"):
        name, _, value = pair.partition("=")
        if unquote(name) == "X-Amz-Security-Token":
            return unquote(value)
    found = request.header(b"x-amz-security-token")
    return None if found is None else found.decode("latin-1")


def sign(
    request: SignedRequest, access_key: str, secret: str, *, now_s: float, scope: tuple[str, str]
) -> dict[str, str]:
    """Sign a request; returns the headers to add to it.

    Args:
        request: the request to send, with all headers that will be sent, including ``host``.
        access_key: access key id of the signer.
        secret: the secret of the key.
        now_s: seconds since the epoch.
        scope: region and service.
    """
    date = _stamp(now_s)
    whole = replace(request, headers=[*request.headers, (b"x-amz-date", date.encode())])
    names = sorted({name.decode("latin-1") for name, _ in whole.headers})
    claim = _Claim(access_key, (date[:8], *scope), names, b"", date, None)
    text = _canonical_request(
        whole,
        claim,
        path=_canonical_paths(whole.raw_path)[0],
        query=_canonical_queries(whole.query)[0],
        payload_hash=_payload_hash(whole),
    )
    credential = "/".join((access_key, *claim.scope, "aws4_request"))
    signature = _signature(claim, secret, text).decode()
    signed = f"Credential={credential}, SignedHeaders={';'.join(names)}, Signature={signature}"
    return {"X-Amz-Date": date, "Authorization": f"{ALGORITHM} {signed}"}


def _fields(text: str) -> dict[str, str]:
    """The ``Name=value`` pairs of a comma-separated list. Takes linear time, even if an attacker made the list."""
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _in_header(request: SignedRequest) -> _Claim:
    authorization = (request.header(b"authorization") or b"").decode("latin-1")
    if not authorization.startswith("AWS4-"):
        raise SignatureError("MissingAuthenticationTokenException", "Missing Authentication Token")
    algorithm, _, rest = authorization.partition(" ")
    parts = _fields(rest)
    absent = [name for name in ("Credential", "Signature", "SignedHeaders") if not parts.get(name)]
    date = (request.header(b"x-amz-date") or b"").decode("latin-1")
    if algorithm != ALGORITHM or absent:
        missing = " ".join(f"Authorization header requires '{name}' parameter." for name in absent)
        raise _incomplete(missing or f"Unsupported AWS 'algorithm': '{algorithm}'.")
    if not date:
        raise _incomplete("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
    return _claim(parts["Credential"], parts["SignedHeaders"], parts["Signature"], date, valid_s=None)


def _presigned(request: SignedRequest) -> _Claim:
    values: dict[str, str] = {}
    for pair in request.query.split("&"):
        name, _, value = pair.partition("=")
        values.setdefault(unquote(name), unquote(value))
    names = ("X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Date", "X-Amz-Expires")
    absent = [name for name in names if not values.get(name)]
    if values.get("X-Amz-Algorithm") != ALGORITHM or absent:
        missing = " ".join(f"AWS query-string parameters must include '{name}'." for name in absent)
        raise _incomplete(missing or "Unsupported 'X-Amz-Algorithm'.")
    valid = values["X-Amz-Expires"]
    is_number = valid.isascii() and valid.isdigit() and len(valid) <= _MOST_DIGITS
    if not is_number or not 1 <= int(valid) <= _LONGEST_PRESIGNED_S:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {_LONGEST_PRESIGNED_S} seconds.")
    return _claim(
        values["X-Amz-Credential"],
        values["X-Amz-SignedHeaders"],
        values["X-Amz-Signature"],
        values["X-Amz-Date"],
        valid_s=int(valid),
    )


def _claim(credential: str, signed_headers: str, signature: str, date: str, *, valid_s: int | None) -> _Claim:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5:
        raise _incomplete(
            "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term."
        )
    access_key, day, region, service, end = parts
    if end != "aws4_request":
        raise _invalid(f"Credential should be scoped with a valid terminator: 'aws4_request', not '{end}'.")
    names = signed_headers.lower().split(";")
    if "host" not in names:
        raise _invalid("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
    if len(set(names)) != len(names):
        raise _invalid("'SignedHeaders' names a header twice.")
    signed = signature.lower().encode("latin-1", "replace")
    return _Claim(access_key, (day, region, service), names, signed, date, valid_s)


def _incomplete(message: str) -> SignatureError:
    return SignatureError("IncompleteSignatureException", message)


def _invalid(message: str) -> SignatureError:
    return SignatureError("InvalidSignatureException", message)


def _check_scope(claim: _Claim, service: str) -> None:
    day, _, asked = claim.scope
    if asked != service:
        raise _invalid(f"Credential should be scoped to correct service: '{service}'.")
    if day != claim.date[:8]:
        raise _invalid(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{day}' != '{claim.date[:8]}', from '{claim.date}'."
        )


def _check_time(claim: _Claim, now_s: float) -> None:
    try:
        signed_s = calendar.timegm(time.strptime(claim.date, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise _incomplete("Date must be in ISO-8601 'basic format', such as 20260101T000000Z.") from None
    if claim.valid_s is not None and now_s > signed_s + claim.valid_s:
        raise _invalid(f"Signature expired: {claim.date} + {claim.valid_s} s is now earlier than {_stamp(now_s)}")
    if claim.valid_s is None and now_s > signed_s + SKEW_S:
        limit = f"{_stamp(now_s - SKEW_S)} ({_stamp(now_s)} - 5 min.)"
        raise _invalid(f"Signature expired: {claim.date} is now earlier than {limit}")
    if signed_s > now_s + SKEW_S:
        limit = f"{_stamp(now_s + SKEW_S)} ({_stamp(now_s)} + 5 min.)"
        raise _invalid(f"Signature not yet current: {claim.date} is still later than {limit}")


def _check_headers(claim: _Claim, request: SignedRequest) -> None:
    """Refuse a request with unsigned ``x-amz-*`` headers: a proxy between client and server could change them.

    Source: IAM user guide, "Create a signed AWS API request": ``host`` and all ``x-amz-*`` headers must be signed.
    """
    signed = set(claim.signed_headers)
    for name, _ in request.headers:
        if name.startswith(b"x-amz-") and name.decode("latin-1") not in signed:
            raise _invalid(f"{_UNSIGNED_HEADERS}: {name.decode('latin-1')}")


def _stamp(time_s: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time_s))


def _payload_hash(request: SignedRequest) -> bytes:
    """The hash of the body, or ``UNSIGNED-PAYLOAD``, as the canonical request (the text that is signed) contains it.

    Raises:
        SignatureError: the body does not have the hash that the request declares.
    """
    actual = hashlib.sha256(request.body).hexdigest().encode()
    announced = request.header(b"x-amz-content-sha256")
    if announced is None or announced == _UNSIGNED:
        return announced or actual
    if not hmac.compare_digest(announced, actual):
        raise _invalid(_MISMATCH)
    return announced


def _canonical_paths(raw_path: str) -> list[str]:
    """The paths that the client may have signed: the path with its dot segments resolved, and the path as sent.

    Both are percent-encoded a second time, as AWS requires for all services but S3.
    """
    segments: list[str] = []
    for segment in raw_path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    resolved = "/" + "/".join(segments) + ("/" if segments and raw_path.endswith("/") else "")
    return list(dict.fromkeys(quote(path, safe="/-_.~") for path in (resolved, raw_path or "/")))


def _canonical_queries(query: str) -> list[str]:
    """The query strings that the client may have signed: the query as sent, and the query encoded again.

    Both are sorted by name and value. The second one is needed because some clients percent-encode fewer characters in
    the query that they send than in the query that they sign.
    """
    pairs = []
    for pair in query.split("&") if query else []:
        name, _, value = pair.partition("=")
        if name != "X-Amz-Signature":
            pairs.append((name, value))
    again = [tuple(quote(unquote_plus(part), safe="-_.~") for part in pair) for pair in pairs]
    return list(dict.fromkeys("&".join(f"{name}={value}" for name, value in sorted(side)) for side in (pairs, again)))


def _canonical_request(request: SignedRequest, claim: _Claim, *, path: str, query: str, payload_hash: bytes) -> bytes:
    lines = [request.method.encode(), path.encode("latin-1"), query.encode("latin-1", "replace")]
    values: dict[bytes, list[bytes]] = {}
    for key, value in request.headers:
        values.setdefault(key, []).append(b" ".join(value.split()))
    for name in claim.signed_headers:
        encoded = name.encode("latin-1", "replace")
        lines.append(encoded + b":" + b",".join(values.get(encoded, [])))
    return b"\n".join([*lines, b"", ";".join(claim.signed_headers).encode("latin-1", "replace"), payload_hash])


def _signature(claim: _Claim, secret: str, canonical_request: bytes) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (*claim.scope, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    digest = hashlib.sha256(canonical_request).hexdigest()
    text = "\n".join((ALGORITHM, claim.date, "/".join((*claim.scope, "aws4_request")), digest))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest().encode()
