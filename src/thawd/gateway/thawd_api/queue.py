"""The operations of ``thawd queue`` and ``thawd dead`` over HTTP, under ``/_thawd/``. Bodies and answers are JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol
from urllib.parse import parse_qs

import msgspec

from thawd.errors import (
    InvalidParameterValueException,
    InvalidRequestContentException,
    MethodNotAllowedException,
)
from thawd.gateway.http import Receive, Scope, Send, read_body, respond_json
from thawd.stores.events.dead_letters import Selection

QUEUE_PATH = "/_thawd/queue"
DEAD_PATH = "/_thawd/dead"
_MAX_BODY_BYTES = 1 << 20
_DEFAULT_PAGE = 50


class QueueOperations(Protocol):
    """The operations on the queue and on dead letters; each returns the document of its answer."""

    async def overview(self) -> dict[str, Any]:
        """The state of the queue for each function."""

    async def page(self, function: str | None, *, after: int, limit: int) -> dict[str, Any]:
        """At most `limit` dead letters with ids larger than `after`, without their payloads.

        Args:
            function: only the dead letters of this function; None: of all functions.
            after: id of the last dead letter of the previous page; 0 for the first page.
            limit: how many dead letters the page may have.
        """

    async def show(self, number: int) -> dict[str, Any]:
        """One dead letter, with its payload."""

    async def redrive(self, selection: Selection) -> dict[str, Any]:
        """Queue the selected dead letters again."""

    async def remove(self, selection: Selection) -> dict[str, Any]:
        """Remove the selected dead letters; for some minutes, that can be undone."""

    async def preview(self, selection: Selection) -> dict[str, Any]:
        """What a removal of the selected dead letters would do."""

    async def removals(self) -> dict[str, Any]:
        """The removals that can be undone."""

    async def undo(self, removal_id: int) -> dict[str, Any]:
        """Make dead letters again of what a removal has removed."""


class _Undo(msgspec.Struct, forbid_unknown_fields=True):
    removal: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


Change = Callable[[bytes], Awaitable[dict[str, Any]]]
"""Changes dead letters as a body says, a JSON document, and returns the document of the answer."""
Elsewhere = Callable[[str, str, bytes], Awaitable[bytes]]
"""Has another machine do so: gets its name, the name of the change and the body; returns the answer, JSON."""


def changes_of(operations: QueueOperations) -> dict[str, Change]:
    """The changes of dead letters, by name."""
    return {
        "redrive": lambda body: operations.redrive(_selection(body)),
        "remove": lambda body: operations.remove(_selection(body)),
        "undo": lambda body: operations.undo(_removal(body)),
    }


class QueueApi:
    """Serves ``/_thawd/queue``, ``/_thawd/dead`` and all paths under ``/_thawd/dead/``.

    With ``machine=NAME`` in the query string, a POST changes the dead letters of another machine of the cluster.

    Args:
        operations: the operations on this machine.
        elsewhere: has machines of the cluster change dead letters; None: this machine belongs to none.
    """

    def __init__(self, operations: QueueOperations, elsewhere: Elsewhere | None = None) -> None:
        self._operations = operations
        self._elsewhere = elsewhere
        self._changes = changes_of(operations)

    def claims(self, path: str) -> bool:
        """Whether a request with this path is for the queue or for dead letters."""
        return path in (QUEUE_PATH, DEAD_PATH) or path.startswith(f"{DEAD_PATH}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            ThawdError: the operation failed; the caller answers with the error.
            ClientGoneError: the client closed the connection.
        """
        path: str = scope["path"]
        rest = path.removeprefix(DEAD_PATH).removeprefix("/")
        change = self._changes.get(rest) if path != QUEUE_PATH else None
        wanted = "GET" if change is None else "POST"
        if scope["method"] != wanted:
            raise MethodNotAllowedException(f"{path} accepts {wanted}, not {scope['method']}", allowed=(wanted,))
        if change is not None:
            body = await read_body(scope, receive, limit_bytes=_MAX_BODY_BYTES, operation=rest)
            machine = parse_qs(scope["query_string"].decode("latin-1")).get("machine", [None])[0]
            document = await (change(body) if machine is None else self._change_elsewhere(machine, rest, body))
        elif path == QUEUE_PATH:
            document = await self._operations.overview()
        elif rest == "removals":
            document = await self._operations.removals()
        elif rest:
            document = await self._operations.show(_number(rest, "the id of a dead letter"))
        else:
            query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
            document = await self._operations.page(
                query.get("function"),
                after=_number(query.get("after", "0"), "after"),
                limit=_number(query.get("limit", str(_DEFAULT_PAGE)), "limit"),
            )
        await respond_json(send, 200, document)

    async def _change_elsewhere(self, machine: str, name: str, body: bytes) -> Any:
        if self._elsewhere is None:
            raise InvalidParameterValueException("machine is for the machines of a cluster, and this server has none")
        return msgspec.Raw(await self._elsewhere(machine, name, body))


def _selection(body: bytes) -> Selection:
    try:
        return msgspec.json.decode(body, type=Selection)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestContentException(f"The body does not select dead letters: {error}") from None


def _removal(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Undo).removal
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestContentException(f"The body does not name a removal: {error}") from None


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidParameterValueException(f"{what} must be a whole number, not {text[:40]!r}")
    return int(text)
