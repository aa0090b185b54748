"""thawd's own operations on event sources: list all (``GET /_thawd/sources``), pause one and resume one (``POST``)."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import unquote

from thawd.errors import MethodNotAllowedException, ResourceNotFoundException
from thawd.gateway.http import READING, Scope, Send, raw_path_of, respond_json

PREFIX = "/_thawd/sources"


class Sources(Protocol):
    """The operations on a server's event sources; each returns the document of its answer."""

    async def document(self) -> dict[str, Any]:
        """Describe all sources."""

    async def pause(self, name: str) -> dict[str, Any]:
        """Pause one source."""

    async def resume(self, name: str) -> dict[str, Any]:
        """Resume one source."""


class SourcesApi:
    """Serves ``/_thawd/sources``."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def __call__(self, scope: Scope, send: Send) -> None:
        """Serve one request.

        Raises:
            ThawdError: the operation failed.
        """
        raw_path = raw_path_of(scope)
        rest = raw_path.removeprefix(PREFIX).strip("/")
        if not rest:
            if scope["method"] not in READING:
                raise MethodNotAllowedException(f"{raw_path} accepts GET, not {scope['method']}", allowed=READING)
            await respond_json(send, 200, await self._sources.document())
            return
        name, _, verb = rest.rpartition("/")
        operations = {"pause": self._sources.pause, "resume": self._sources.resume}
        if not name or verb not in operations:
            raise ResourceNotFoundException(
                f"There is no {raw_path}; the paths are {PREFIX}, {PREFIX}/NAME/pause and {PREFIX}/NAME/resume"
            )
        if scope["method"] != "POST":
            raise MethodNotAllowedException(f"{raw_path} accepts POST, not {scope['method']}", allowed=("POST",))
        await respond_json(send, 200, await operations[verb](unquote(name)))
