"""Carries out the requests of ``thawd queue`` and ``thawd dead``: through the running server, else in the state file.

The state file is the SQLite database ``thawd.db`` in the data folder. A running server keeps the data folder locked, so
a command that gets the lock knows that no server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from thawd.cli.client import is_named, message_of, parse_answer, refusal, request
from thawd.cli.exits import fail, warn

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.queue.operator_view import OperatorView

Question = Callable[["OperatorView"], Awaitable[dict[str, Any]]]
"""A function that calls a method of an `OperatorView` and returns its document. The server's API returns the same."""


def ask(settings: Settings, path: str, body: bytes | None, question: Question) -> dict[str, Any]:
    """Send a request to the running server. If no server runs, lock the data folder and use the state file instead.

    If the environment variable ``THAWD_URL`` names a server, the request goes to that server.

    Args:
        settings: the configuration.
        path: path of the request to a server.
        body: body of the request, JSON; None: the request is a GET.
        question: does the same with an `OperatorView` that uses the state file.

    Raises:
        ThawdError: the state file cannot be used, or the request names something that does not exist.
    """
    from thawd.server.port_and_folder_locks import StartError, lock

    if is_named():
        return _from_server(settings, path, body)
    if not settings.server.data.is_dir():
        fail(f"there is no data folder {settings.server.data} yet; `thawd up -c {settings.path}` creates it")
    with contextlib.ExitStack() as holding:
        try:
            holding.enter_context(lock(settings.server.data, briefly=True))
        except StartError:
            return _from_server(settings, path, body)
        return asyncio.run(_from_file(settings, question))


def _from_server(settings: Settings, path: str, body: bytes | None) -> dict[str, Any]:
    status, _, answered = request(settings, path, body, {} if body is None else {"Content-Type": "application/json"})
    if status != 200:
        fail(refusal(settings, status, message_of(answered)))
    document: dict[str, Any] = parse_answer(answered)
    return document


async def _from_file(settings: Settings, question: Question) -> dict[str, Any]:
    import msgspec

    from thawd.queue.maintenance import Upkeep
    from thawd.queue.operator_view import OperatorView
    from thawd.stores.events.dead_letters import DeadLetters
    from thawd.stores.events.event_queue import EventQueue
    from thawd.stores.events.removals import Removals
    from thawd.stores.schema import open_state

    state = open_state(settings.server.data / "thawd.db")
    try:
        letters = DeadLetters(state)
        upkeep = Upkeep(
            state,
            EventQueue(state),
            letters,
            names=lambda: (),
            retention_s=settings.server.dead_letter_retention_s,
            report=warn,
        )
        document = await question(OperatorView(letters, Removals(state), upkeep, wake=lambda functions: None))
        # The document contains payloads that are encoded as JSON already. Encoding and parsing the document turns these
        # payloads into plain objects, as in an answer of the server.
        shown: dict[str, Any] = json.loads(msgspec.json.encode(document))
        return shown
    finally:
        state.close()
