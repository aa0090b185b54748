"""The services of thawd and moto that requests to APIs use, and the part of an API that a request is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from thawd.server.emulator.api_gateway.authorizer_cache import AuthorizerCache
from thawd.server.emulator.api_gateway.function_invocations import ApiFunctions
from thawd.server.emulator.api_gateway.json_web_tokens import TokenKeys, emulated_pool_keys
from thawd.server.emulator.api_gateway.usage_plans import Usage


@dataclass(frozen=True, slots=True)
class ApiServices:
    """The services that requests to APIs use.

    Attributes:
        functions: invokes functions.
        client: returns a boto3 client for thawd's port, by the name of the service.
        connection: returns the URL and keys of thawd's port: ``url``, ``access_key``, ``secret``.
        complain: prints a line for the operator.
        cache: answers of authorizers.
        token_keys: public keys of issuers.
        usage: counts requests with API keys.
    """

    functions: ApiFunctions
    client: Callable[[str], Any]
    connection: Callable[[], Mapping[str, str]]
    complain: Callable[[str], None]
    cache: AuthorizerCache = field(default_factory=AuthorizerCache)
    token_keys: TokenKeys = field(default_factory=lambda: TokenKeys(emulated_pool_keys))
    usage: Usage = field(default_factory=Usage)


class Target(NamedTuple):
    """The stage and path that a request is for.

    Attributes:
        stage: name of the stage.
        path: percent-encoded path after the stage.
        base_path: if the request uses a custom domain, the path of the domain's mapping, without slashes at its ends;
            otherwise None.
    """

    stage: str
    path: str
    base_path: str | None
