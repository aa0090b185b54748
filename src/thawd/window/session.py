"""Who may see the pages: the server's key, a browser's session cookie, and the tokens in forms.

On loopback without a key, everybody on this machine may see them, as with thawd's other APIs. With a key, a browser
sends it once, on the login page, and gets a cookie that scripts cannot read and that other sites cannot send. A form
has a token, so that no other site can press its buttons. Sessions end when the server ends, and after twelve hours.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence

from thawd.gateway.http import Scope, header
from thawd.gateway.key_check import has_key

COOKIE = "thawd_session"
_LASTS_S = 12 * 3600


class Sessions:
    """The sessions of one server.

    Args:
        key: the server's key; None: it has none.
        others: further secrets with which one may log in, if there is no key: the secrets of access keys.
    """

    def __init__(self, key: str | None, others: Sequence[str] = ()) -> None:
        self._key = key
        self._secrets = [key] if key is not None else list(others)
        self._own = secrets.token_bytes(32)

    @property
    def are_needed(self) -> bool:
        """Whether a browser must log in."""
        return bool(self._secrets)

    def opened(self, scope: Scope) -> str | None:
        """Return what identifies the session of a request; None: it has none and needs one."""
        if not self._secrets:
            return "loopback"
        if has_key(scope, self._key):
            return "key"
        for pair in (header(scope, b"cookie") or b"").decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE and self._is_valid(value):
                return value
        return None

    def log_in(self, presented: str, *, is_secure: bool) -> bytes | None:
        """Return the header ``Set-Cookie`` of a new session; None: the key is wrong."""
        given = presented.encode()
        # All are compared, so that the time does not tell which one is right.
        if not any([hmac.compare_digest(given, secret.encode()) for secret in self._secrets]):  # noqa: C419
            return None
        until = str(int(time.time()) + _LASTS_S)
        value = f"{until}.{secrets.token_hex(8)}"
        return self._cookie(f"{value}.{self._sign('session', value)}", _LASTS_S, is_secure=is_secure)

    def log_out(self, *, is_secure: bool) -> bytes:
        """Return the header ``Set-Cookie`` that makes a browser forget its session."""
        return self._cookie("", 0, is_secure=is_secure)

    def token(self, session: str) -> str:
        """Return the token of a session's forms."""
        return self._sign("form", session)

    def has_token(self, session: str, presented: str) -> bool:
        """Return whether a form has its session's token."""
        return hmac.compare_digest(self.token(session).encode(), presented.encode())

    def _cookie(self, value: str, lasts_s: int, *, is_secure: bool) -> bytes:
        secure = "; Secure" if is_secure else ""
        return f"{COOKIE}={value}; Path=/_thawd; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}".encode()

    def _is_valid(self, value: str) -> bool:
        signed, _, signature = value.rpartition(".")
        until = signed.partition(".")[0]
        is_right = hmac.compare_digest(self._sign("session", signed).encode(), signature.encode())
        return is_right and until.isdigit() and int(until) > time.time()

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._own, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()
