"""thawd's own operations on this machine of a cluster: ``POST /_thawd/cluster/drain``, ``resume`` and ``leave``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from thawd.errors import MethodNotAllowedException, ResourceNotFoundException
from thawd.gateway.http import Scope, Send, respond_json

PREFIX = "/_thawd/cluster"


class ClusterApi:
    """Serves ``/_thawd/cluster``.

    Args:
        operations: the operations by name; each returns the document of its answer.
    """

    def __init__(self, operations: Mapping[str, Callable[[], Awaitable[dict[str, Any]]]]) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, send: Send) -> None:
        """Serve one request.

        Raises:
            ThawdError: the operation failed.
        """
        name = scope["path"].removeprefix(PREFIX).strip("/")
        if name not in self._operations:
            paths = ", ".join(f"{PREFIX}/{each}" for each in self._operations)
            raise ResourceNotFoundException(f"There is no {scope['path']}; the paths are {paths}")
        if scope["method"] != "POST":
            raise MethodNotAllowedException(f"{scope['path']} accepts POST, not {scope['method']}", allowed=("POST",))
        await respond_json(send, 200, await self._operations[name]())
