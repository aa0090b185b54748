"""Finds the function that a function URL belongs to. Deals only with host names and paths, not with HTTP requests.

The host name of a function URL is ``ID.lambda-url.REGION.localhost`` or ``ID.lambda-url.REGION.on.aws``. Clients whose
resolver does not know names under ``localhost`` can use the path ``/_urls/ID/...`` of the server instead. ``ID`` is
computed from the names of the function and its qualifier, so ``ID`` remains the same after a restart.

Source: AWS Lambda developer guide, "Creating and managing Lambda function URLs".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thawd.resources import ACCOUNT_ID, LATEST, REGION, Cors, FunctionUrl

PATH_PREFIX = "/_urls/"
_ID = r"[a-z0-9]{32}"
_HOST = re.compile(rf"({_ID})\.lambda-url\.[a-z0-9-]+\.(?:localhost|on\.aws)(?::\d+)?", re.IGNORECASE)
_PATH = re.compile(rf"{re.escape(PATH_PREFIX)}({_ID})(?=/|$)")
_DIGITS = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Url:
    """A function URL.

    Attributes:
        identifier: 32 lower-case letters and digits.
        function: name of the function.
        qualifier: ``$LATEST`` or an alias.
        settings: who may call, and how answers are sent.
    """

    identifier: str
    function: str
    qualifier: str
    settings: FunctionUrl

    @property
    def domain(self) -> str:
        """The URL's host name in the form that AWS uses."""
        return f"{self.identifier}.lambda-url.{REGION}.on.aws"


def url_id(function: str, qualifier: str = LATEST) -> str:
    """The identifier of the URL of a function (`qualifier` is ``$LATEST``) or of one of its aliases."""
    name = f"{ACCOUNT_ID}:{REGION}:{function}:{qualifier}"
    number = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    letters = []
    for _ in range(32):
        number, digit = divmod(number, len(_DIGITS))
        letters.append(_DIGITS[digit])
    return "".join(letters)


def id_in(address: str) -> str | None:
    """The identifier of a function URL in `address`: a host, perhaps with a port, or a path. None if there is none.

    A function URL with this identifier need not exist.
    """
    match = _PATH.match(address) if address.startswith("/") else _HOST.fullmatch(address)
    return match[1].lower() if match is not None else None


def settings_of(config: Mapping[str, Any]) -> FunctionUrl:
    """The settings that a function URL configuration of the Lambda API contains (AuthType, InvokeMode, Cors)."""
    shared = config.get("Cors")
    return FunctionUrl(
        auth_type=config["AuthType"],
        invoke_mode=config.get("InvokeMode", "BUFFERED"),
        cors=Cors(
            allow_origins=tuple(shared.get("AllowOrigins", ())),
            allow_methods=tuple(shared.get("AllowMethods", ())),
            allow_headers=tuple(shared.get("AllowHeaders", ())),
            expose_headers=tuple(shared.get("ExposeHeaders", ())),
            max_age_s=shared.get("MaxAge", 0),
            allow_credentials=shared.get("AllowCredentials", False),
        )
        if shared
        else None,
    )


def described(settings: FunctionUrl) -> dict[str, Any]:
    """`settings` as a function URL configuration of the Lambda API; the inverse of `settings_of`."""
    config: dict[str, Any] = {"AuthType": settings.auth_type, "InvokeMode": settings.invoke_mode}
    shared = settings.cors
    if shared is not None:
        lists = {
            "AllowOrigins": shared.allow_origins,
            "AllowMethods": shared.allow_methods,
            "AllowHeaders": shared.allow_headers,
            "ExposeHeaders": shared.expose_headers,
        }
        config["Cors"] = {
            **{name: list(values) for name, values in lists.items() if values},
            "MaxAge": shared.max_age_s,
            "AllowCredentials": shared.allow_credentials,
        }
    return config


class UrlTable:
    """All function URLs: those declared in thawd.toml and those made through the API, which take precedence."""

    def __init__(self) -> None:
        self._declared: dict[str, Url] = {}
        self._set: dict[str, Url] = {}

    def __bool__(self) -> bool:
        return bool(self._declared or self._set)

    def __len__(self) -> int:
        return len(self._declared.keys() | self._set.keys())

    def __iter__(self) -> Iterator[Url]:
        return iter((self._declared | self._set).values())

    def declare(self, urls: Mapping[str, FunctionUrl]) -> None:
        """Replace the URLs declared in thawd.toml; `urls` maps names of functions to the settings of their URLs."""
        made = (Url(url_id(name), name, LATEST, settings) for name, settings in urls.items())
        self._declared = {url.identifier: url for url in made}

    def set(self, function: str, qualifier: str, settings: FunctionUrl) -> str:
        """Make or change the URL of a function or of one of its aliases; returns the URL's identifier."""
        identifier = url_id(function, qualifier)
        self._set[identifier] = Url(identifier, function, qualifier, settings)
        return identifier

    def remove(self, function: str, qualifier: str) -> bool:
        """Remove a URL that `set` made; returns whether it existed."""
        return self._set.pop(url_id(function, qualifier), None) is not None

    def find(self, address: str) -> Url | None:
        """The function URL whose identifier `address` contains; None if there is none. `address` is as for `id_in`."""
        identifier = id_in(address)
        if identifier is None:
            return None
        return self._set.get(identifier) or self._declared.get(identifier)
