"""Changes moto's API Gateway before its first request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thawd.server.emulator.apis.authorizer_cache import AuthorizerCache
from thawd.server.emulator.apis.operations import http_apis, rest_apis


def install(cache: AuthorizerCache, connection: Callable[[], Mapping[str, Any]]) -> None:
    """Add the operations that moto lacks, and correct those that differ from AWS's.

    Args:
        cache: answers of authorizers, for the operation that flushes them.
        connection: returns how thawd's port is reached: ``url`` and others.
    """
    rest_apis.install(cache)
    http_apis.install(connection)
