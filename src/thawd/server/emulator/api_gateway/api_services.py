"""What serving an API needs from the rest of thawd and from moto."""

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
    """What serving an API needs.

    Attributes:
        functions: invokes functions.
        client: returns a boto3 client for thawd's port, by the name of the service.
        connection: returns how thawd's port is reached: ``url``, ``access_key``, ``secret``.
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
    """What of an API a request is for.

    Attributes:
        stage: name of the stage.
        path: percent-encoded path after the stage.
        base_path: path of the mapping of a custom domain, without slashes at its ends; None: the request uses no custom
            domain.
    """

    stage: str
    path: str
    base_path: str | None
