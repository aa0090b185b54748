"""What the machines of a cluster are and know, asked at any of them: ``/_thawd/machines``. Everything here only reads.

- ``GET /_thawd/machines``: all machines, as each describes itself.
- ``GET /_thawd/machines?ask=QUESTION``: the answers of all machines to a question, and why others have not answered.
  ``only=NAME`` asks one machine. The questions are ``status`` and ``queue``, the documents of ``/_thawd/status`` and
  ``/_thawd/queue``; ``dead`` with ``function``, ``limit`` and ``after.NAME=ID`` for each machine, ``dead_letter`` with
  ``id``, and ``removals``, the documents of ``/_thawd/dead``; ``find`` with ``prefix``, recorded invocations whose
  request ids begin with it, or with ``function``, the latest one; ``record`` with ``request_id``, the document of
  ``/_thawd/invocations/ID``; and ``logs`` with ``group``, a page of a log group, which ``last=N``, or
  ``after.NAME=PLACE`` for each machine and ``since_ms=TIME`` choose (`thawd.telemetry.logs.pages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from thawd.cluster.overview import SeenMachine
from thawd.cluster.questions import Asker
from thawd.errors import (
    InvalidParameterValueException,
    MethodNotAllowedException,
    ResourceNotFoundException,
    ThawdError,
)
from thawd.gateway.http import READING, Scope, Send, respond_json

PATH = "/_thawd/machines"
QUESTIONS = ("status", "queue", "dead", "dead_letter", "removals", "logs", "find", "record")
_PATIENCE_S = 2.5
_WAIT_S = 5.0
_MOST_AT_ONCE = 16
_AFTER = "after."


class Machines(Protocol):
    """See `thawd.cluster.overview.Overview.machines`."""

    def __call__(self, patience_s: float, /) -> Awaitable[list[SeenMachine]]:
        """Return the machines of the cluster."""


class MachinesApi:
    """Serves ``/_thawd/machines``.

    Args:
        asker: asks machines.
        machines: returns the machines of the cluster.
    """

    def __init__(self, asker: Asker, machines: Machines) -> None:
        self._asker = asker
        self._machines = machines

    def claims(self, path: str) -> bool:
        """Whether a request with this path is for machines."""
        return path == PATH

    async def __call__(self, scope: Scope, send: Send) -> None:
        """Serve one request.

        Raises:
            MethodNotAllowedException: the request does not only read (405).
            InvalidParameterValueException: there is no such question (400).
            ResourceNotFoundException: there is no such machine (404).
            ThawdError: this machine cannot answer the question.
        """
        if scope["method"] not in READING:
            raise MethodNotAllowedException(f"{PATH} accepts GET, not {scope['method']}", allowed=READING)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        question, only = query.pop("ask", None), query.pop("only", None)
        machines = await self._machines(_PATIENCE_S)
        if only is not None and only not in {machine.name for machine in machines}:
            raise ResourceNotFoundException(f"There is no machine {only[:80]} in the cluster of {self._asker.own}")
        wanted = [machine for machine in machines if only in (None, machine.name)]
        if question is None:
            await respond_json(send, 200, {"machine": self._asker.own, "machines": wanted})
        elif question in QUESTIONS:
            await respond_json(send, 200, await self.ask_all(wanted, question, query))
        else:
            raise InvalidParameterValueException(f"ask must be one of {', '.join(QUESTIONS)}, not {question[:40]!r}")

    async def ask_all(
        self, machines: list[SeenMachine], question: str, arguments: Mapping[str, str], *, wait_s: float = _WAIT_S
    ) -> dict[str, Any]:
        """Ask machines at the same time.

        Args:
            machines: the machines. Those that do not answer at present are not asked.
            question: name of the question.
            arguments: arguments of the question; those that begin with ``after.`` are for the machine that they name.
            wait_s: how long to wait for each machine, seconds.

        Returns:
            ``machine``, the name of this machine; ``answers``, the document of each machine that has answered, by
            name; ``away``, why each other one has not.

        Raises:
            ThawdError: this machine cannot answer the question.
        """
        answers: dict[str, Any] = {}
        away = {each.name: f"{each.state}: {each.why}" for each in machines if each.report is None}
        common = {name: value for name, value in arguments.items() if not name.startswith(_AFTER)}
        own_errors: list[ThawdError] = []
        at_once = asyncio.Semaphore(_MOST_AT_ONCE)

        async def ask(machine: str) -> None:
            after = arguments.get(f"{_AFTER}{machine}")
            own = common if after is None else {**common, "after": after}
            try:
                async with at_once:
                    document = await self._asker.ask(machine, question, own, timeout_s=wait_s)
            except ThawdError as error:
                if machine == self._asker.own and question not in ("record", "dead_letter"):
                    own_errors.append(error)
                away[machine] = error.message
            else:
                answers[machine] = msgspec.Raw(document)

        await asyncio.gather(*(ask(each.name) for each in machines if each.name not in away))
        if own_errors:
            raise own_errors[0]
        return {"machine": self._asker.own, "answers": answers, "away": away}
