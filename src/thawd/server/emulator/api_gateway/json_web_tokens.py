"""Checks JSON Web Tokens for JWT authorizers and for user pools of Cognito.

The keys of an emulated user pool come from the emulator. Those of another issuer are fetched from the address that the
authorizer's configuration names, and kept for two hours, as on AWS.

Source: API Gateway developer guide, "Control access to HTTP APIs with JWT authorizers in API Gateway"; OpenID Connect
Discovery 1.0, 4.
"""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

_USER_POOL = re.compile(r"https://cognito-idp\.([a-z0-9-]+)\.amazonaws\.com/([\w-]+)/?")
_ALGORITHMS = ("RS256", "RS384", "RS512")
_KEPT_S = 7200.0
_FETCH_S = 5.0
_AGAIN_S = 10.0
_MOST_BYTES = 1 << 20

Claims = dict[str, Any]


class TokenError(Exception):
    """A token is not accepted; the message says why.

    Args:
        message: the reason.
        code: ``invalid_token`` or ``insufficient_scope``.
        is_expired: whether the only problem is that the token has expired.
    """

    def __init__(self, message: str, *, code: str = "invalid_token", is_expired: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_expired = is_expired


class TokenKeys:
    """Public keys of issuers.

    Args:
        pool_keys: returns the keys of an emulated user pool, by region and id, as a JSON Web Key Set; None: there is no
            such pool.
        fetch: returns the JSON document at a URL.
        clock: seconds, from any starting point.
    """

    def __init__(
        self,
        pool_keys: Callable[[str, str], Any],
        fetch: Callable[[str], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool_keys = pool_keys
        self._fetch = fetch or fetched
        self._clock = clock
        self._kept: dict[str, tuple[float, Any]] = {}

    def of(self, issuer: str, key_id: str | None) -> Any:
        """Return the keys of an issuer, as a JSON Web Key Set.

        Args:
            issuer: URL of the issuer.
            key_id: id of the key that is needed. If it is not among the cached keys, the keys are fetched again.

        Raises:
            TokenError: the keys cannot be fetched.
        """
        if match := _USER_POOL.fullmatch(issuer):
            found = self._pool_keys(match[1], match[2])
            if found is not None:
                return found
        since_s, keys = self._kept.get(issuer, (float("-inf"), None))
        age_s = self._clock() - since_s
        is_known = keys is not None and any(key.get("kid") == key_id for key in keys["keys"])
        if keys is None or age_s > _KEPT_S or (not is_known and age_s > _AGAIN_S):
            keys = self._fetched(issuer)
            self._kept[issuer] = (self._clock(), keys)
        return keys

    def _fetched(self, issuer: str) -> Any:
        try:
            place = self._fetch(issuer.rstrip("/") + "/.well-known/openid-configuration")["jwks_uri"]
            return {"keys": [dict(key) for key in self._fetch(place)["keys"]]}
        except Exception as error:  # whatever fails, the token is not accepted
            raise TokenError(f"the keys of {issuer} cannot be fetched: {error}") from error


def fetched(url: str) -> Any:
    """Return the JSON document at a URL of an issuer.

    Raises:
        OSError: it cannot be fetched.
        ValueError: the document is not JSON, or the URL is not an HTTP URL.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is not a URL of HTTP")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_FETCH_S) as response:
        return json.loads(response.read(_MOST_BYTES))


def checked(token: str, keys: TokenKeys, *, issuers: Iterable[str], now_s: float) -> Claims:
    """Verify a token: one of the issuers has signed it, and it has not expired. Returns its claims.

    Args:
        token: the token, without ``Bearer``.
        keys: public keys of issuers.
        issuers: URLs of the accepted issuers.
        now_s: seconds since the epoch.

    Raises:
        TokenError: the token is not accepted.
    """
    header, claims = _part(token, 0), _part(token, 1)
    issuer = claims.get("iss")
    if not isinstance(issuer, str) or issuer.rstrip("/") not in {one.rstrip("/") for one in issuers}:
        raise TokenError("claim(s) [iss] is invalid")
    if header.get("alg") not in _ALGORITHMS:
        raise TokenError("signing method is not supported")
    _verify(token, keys.of(issuer, header.get("kid")))
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TokenError(f"claim(s) [{name}] is invalid")
    if "exp" not in claims or claims["exp"] <= now_s:
        raise TokenError("the token has expired", is_expired="exp" in claims)
    if claims.get("nbf", 0) > now_s or claims.get("iat", 0) > now_s:
        raise TokenError("the token is not valid yet")
    return claims


def _part(token: str, index: int) -> Claims:
    parts = token.split(".")
    try:
        text = parts[index]
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, IndexError, RecursionError) as error:
        raise TokenError("the token is malformed") from error
    if len(parts) != 3 or not isinstance(found, dict):
        raise TokenError("the token is malformed")
    return found


def _verify(token: str, key_set: Any) -> None:
    from joserfc import jwt
    from joserfc.jwk import KeySet

    try:
        usable = [key for key in key_set["keys"] if key.get("kty") == "RSA"]
        jwt.decode(token, KeySet.import_key_set({"keys": usable}), algorithms=list(_ALGORITHMS))
    except Exception as error:  # the library raises errors of many classes
        raise TokenError("signature is invalid") from error


def require_audience(claims: Claims, audiences: Iterable[str]) -> None:
    """Check that a token's audience is one of these.

    Raises:
        TokenError: the token is for another audience.
    """
    given = claims.get("aud", claims.get("client_id"))
    names = given if isinstance(given, list) else [given]
    if not set(names) & set(audiences):
        raise TokenError("claim(s) [aud] is invalid")


def scopes_of(claims: Claims) -> list[str]:
    """Return the scopes of a token, in the claim ``scope`` or ``scp``."""
    given = claims.get("scope", claims.get("scp"))
    if isinstance(given, str):
        return given.split()
    return [str(one) for one in given] if isinstance(given, list) else []


def require_scope(scopes: Iterable[str], wanted: Iterable[str]) -> None:
    """Check that a token has one of the scopes that a route requires. A route may require none.

    Raises:
        TokenError: the token has none of the scopes.
    """
    if wanted and not set(wanted) & set(scopes):
        raise TokenError("the token has none of the route's scopes", code="insufficient_scope")


def as_texts(claims: Claims) -> dict[str, str]:
    """Return claims as events contain them: each value is a string."""
    return {name: _text(value) for name, value in claims.items()}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_text(one) for one in value) + "]"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def emulated_pool_keys(region: str, pool: str) -> Any:
    """Return the keys of the emulator's user pool, as a JSON Web Key Set; None: there is no such pool."""
    from moto.cognitoidp.models import cognitoidp_backends
    from moto.utilities.utils import load_resource

    from thawd.resources import ACCOUNT_ID

    backends: Any = cognitoidp_backends[ACCOUNT_ID]
    if region not in backends or pool not in backends[region].user_pools:
        return None
    return load_resource("cognitoidp/resources/jwks-public.json")
