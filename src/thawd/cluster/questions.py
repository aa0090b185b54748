"""Questions that machines ask each other: one machine reads something of another one, over their connections.

Guarantees:
- a question only reads. It can be asked again, and each machine can ask each other one;
- an order changes something, and is sent once. If the other machine is lost meanwhile, it is unknown whether it was
  carried out (`UnknownOutcomeError`);
- a machine that does not answer in time costs the asking one nothing but the wait (`MachineAwayError`);
- an answer has no secret that the asked machine's own pages and APIs would not show to somebody who has its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from thawd.cluster import channel
from thawd.cluster.links import Links, MayHaveRunError, NotRunError
from thawd.cluster.listening import error_of
from thawd.errors import (
    InvalidParameterValueException,
    MachineAwayError,
    ResourceNotFoundException,
    UnknownOutcomeError,
)

Question = Callable[[Mapping[str, str]], Awaitable[bytes]]
"""Answers a question: gets its arguments, and returns a JSON document."""


async def answer(questions: Mapping[str, Question], question: str, arguments: Mapping[str, str]) -> bytes:
    """Return the answer to a question.

    Args:
        questions: answers questions, by name.
        question: name of the question.
        arguments: its arguments.

    Raises:
        InvalidParameterValueException: this machine does not know the question (400).
        ThawdError: it cannot be answered.
    """
    asked = questions.get(question)
    if asked is None:
        raise InvalidParameterValueException(f"this machine's thawd does not know the question {question[:40]!r}")
    return await asked(arguments)


def order_name(order: str) -> str:
    """The name under which an order is among the questions."""
    return f"order:{order}"


class Asker:
    """Asks machines of the cluster, this one included.

    Args:
        own: name of this machine.
        questions: answers questions to this machine.
        links: returns the connections to another machine; None: there is no such machine.
    """

    def __init__(self, own: str, questions: Mapping[str, Question], links: Callable[[str], Links | None]) -> None:
        self.own = own
        self._questions = questions
        self._links = links

    async def ask(self, machine: str, question: str, arguments: Mapping[str, str], *, timeout_s: float) -> bytes:
        """Ask a machine, and return the JSON document of its answer.

        Args:
            machine: its name.
            question: name of the question.
            arguments: the question's arguments.
            timeout_s: how long to wait for the answer, seconds.

        Raises:
            ResourceNotFoundException: there is no such machine (404), or it has not what is asked for.
            MachineAwayError: it does not answer (503).
            ThawdError: its answer is an error.
        """
        try:
            return await self._ask(machine, question, arguments, timeout_s=timeout_s)
        except TimeoutError:
            raise MachineAwayError(f"the machine {machine} did not answer within {timeout_s:g} s") from None
        except MayHaveRunError as error:
            raise MachineAwayError(str(error)) from None

    async def order(self, machine: str, order: str, body: str, *, timeout_s: float) -> bytes:
        """Have a machine change something, and return the JSON document of its answer.

        Args:
            machine: its name.
            order: name of the order.
            body: a JSON document, which says what to change.
            timeout_s: how long to wait for the answer, seconds.

        Raises:
            ResourceNotFoundException: there is no such machine (404), or it has not what is to be changed.
            MachineAwayError: it cannot be reached, so nothing was changed (503).
            UnknownOutcomeError: it is unknown whether it was changed (503).
            ThawdError: its answer is an error.
        """
        try:
            return await self._ask(machine, order_name(order), {"body": body}, timeout_s=timeout_s)
        except (TimeoutError, MayHaveRunError):
            raise UnknownOutcomeError(
                f"the machine {machine} was lost, or has not answered within {timeout_s:g} s, so it is unknown whether "
                "it did what it was to do; look before you repeat it"
            ) from None

    async def _ask(self, machine: str, question: str, arguments: Mapping[str, str], *, timeout_s: float) -> bytes:
        if machine == self.own:
            return await answer(self._questions, question, arguments)
        links = self._links(machine)
        if links is None:
            raise ResourceNotFoundException(f"There is no machine {machine[:80]} in the cluster of {self.own}")
        head = {"question": question, "arguments": dict(arguments)}
        try:
            async with asyncio.timeout(timeout_s):
                reply = await links.call(head, b"", kind=channel.ASK)
        except NotRunError as error:
            raise MachineAwayError(str(error)) from None
        if reply.kind == channel.ERROR:
            raise error_of(reply.head)
        return reply.body
