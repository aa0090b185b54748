"""Temporary access keys for functions: each function has its own, as if it had assumed its role on AWS.

The keys are derived from a random secret of this run of the server, so a key of an earlier run is unknown, and nothing
is stored. The environments of a function get them when they start; copies of a snapshot get those of this run.

Source: IAM user guide, "IAM identifiers", "Unique identifiers" (the prefix ``ASIA`` of temporary keys); AWS STS API
reference, "GetCallerIdentity"; AWS Lambda developer guide, "Defined runtime environment variables".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from thawd.resources import ACCOUNT_ID

_PREFIX = "ASIA"
_ID_LENGTH, _SECRET_LENGTH = 16, 40
# Tokens on AWS begin like this, and are at least this long.
_TOKEN_PREFIX, _TOKEN_BYTES = "IQoJb3JpZ2luX2Vj", 240


@dataclass(frozen=True, slots=True)
class Credentials:
    """Temporary credentials. Their `repr` contains no secret.

    Attributes:
        access_key: access key id.
        secret: secret access key.
        token: session token, which each request must carry.
    """

    access_key: str
    secret: str
    token: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"

    def variables(self) -> dict[str, str]:
        """The environment variables with which a function gets the credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_SESSION_TOKEN": self.token,
        }


@dataclass(frozen=True, slots=True)
class Identity:
    """Who signed a request: a function that has assumed its role.

    Attributes:
        role: name of the role.
        session: name of the session, which is the function's name.
    """

    role: str
    session: str

    @property
    def arn(self) -> str:
        """ARN of the assumed role."""
        return f"arn:aws:sts::{ACCOUNT_ID}:assumed-role/{self.role}/{self.session}"

    @property
    def user_id(self) -> str:
        """Unique identifier of the role, with the session. The identifier is derived from the role's name."""
        digest = hashlib.sha256(self.role.encode()).digest()
        return f"AROA{base64.b32encode(digest).decode()[:17]}:{self.session}"


class RoleKeys(Mapping[str, str]):
    """The access keys that requests may be signed with: the configured ones, and those of functions.

    As a mapping, it has the secrets by access key id.

    Args:
        configured: secrets by access key id, from the configuration.
        role_of: returns the ARN of a function's role; "" if it has none.
    """

    def __init__(self, configured: Mapping[str, str], *, role_of: Callable[[str], str]) -> None:
        self._configured = configured
        self._role_of = role_of
        self._secret = secrets.token_bytes(32)
        self._functions: dict[str, str] = {}  # the function to which each access key was given

    def credentials(self, function: str) -> Credentials:
        """The credentials of a function in this run of the server; the same at each call."""
        access_key = _PREFIX + base64.b32encode(self._derive("id", function)).decode()[:_ID_LENGTH]
        self._functions[access_key] = function
        return self._of(access_key)

    def identity(self, access_key: str) -> Identity | None:
        """The function that signs with this key; None: it is not the key of a function."""
        function = self._functions.get(access_key)
        if function is None:
            return None
        role = self._role_of(function).rpartition("/")[2] or f"{function}-role"
        return Identity(role, function)

    def has_token(self, access_key: str, token: str | None) -> bool:
        """Whether a request signed with `access_key` carries the right session token; other keys need none."""
        if access_key not in self._functions:
            return True
        return token is not None and hmac.compare_digest(token.encode(), self._of(access_key).token.encode())

    def _of(self, access_key: str) -> Credentials:
        secret = base64.b64encode(self._derive("secret", access_key)).decode()[:_SECRET_LENGTH]
        parts = (self._derive(f"token {number}", access_key) for number in range(_TOKEN_BYTES // 32 + 1))
        token = _TOKEN_PREFIX + base64.b64encode(b"".join(parts)[:_TOKEN_BYTES]).decode()
        return Credentials(access_key, secret, token)

    def _derive(self, what: str, name: str) -> bytes:
        return hmac.digest(self._secret, f"{what}:{name}".encode(), "sha256")

    def __getitem__(self, access_key: str) -> str:
        if access_key in self._functions:
            return self._of(access_key).secret
        return self._configured[access_key]

    def __iter__(self) -> Iterator[str]:
        yield from self._configured
        yield from self._functions

    def __len__(self) -> int:
        return len(self._configured) + len(self._functions)
