"""Requests that run together, as one batch, in one environment; each request is an item of the batch.

A batch runs in an asyncio task of its own and not in the task of one of its callers. So if a caller goes away, the
other items continue. Once all callers have gone away, the environment is killed, as for a single request whose caller
has gone away. An HTTP client that disconnects is not such a caller: its request waits for the answer, as on Lambda.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from thawd.environments.environment import Environment
from thawd.errors import ServiceException
from thawd.invocation import Invocation, Result
from thawd.scheduling.room import Room


class BatchRun:
    """The run of a batch.

    Args:
        environment: runs the batch. It is leased to this batch alone.
        invocations: the items.
    """

    def __init__(self, environment: Environment, invocations: Sequence[Invocation]) -> None:
        loop = asyncio.get_running_loop()
        self._environment = environment
        self._items: list[tuple[Invocation, asyncio.Future[Result]]]
        self._items = [(invocation, loop.create_future()) for invocation in invocations]
        self._running = False

    async def run(self, room: Room, *, init_ms: float | None, on_end: Callable[[], None]) -> None:
        """Run the items whose callers are still there.

        Args:
            room: watches the environment's memory and temporary folder while the batch runs.
            init_ms: how long the environment's start took, milliseconds; None: the requests did not wait for a start.
            on_end: called once, when the batch has ended or failed or was cancelled.
        """
        items = [item for item in self._items if not item[1].done()]
        error: Exception | None = None
        results: Sequence[Result] = ()
        try:
            if items:
                self._running = True
                room.began(self._environment)
                results = await self._environment.invoke_batch([each for each, _ in items], init_ms=init_ms)
        except asyncio.CancelledError:
            self._environment.kill()
            error = ServiceException("the batch was cancelled because thawd is stopping")
            raise
        except Exception as failure:
            self._environment.kill()
            error = failure
        finally:
            self._running = False
            for index, (_, answer) in enumerate(items):
                if answer.done():
                    continue  # the caller of this item has gone away
                if error is None:
                    answer.set_result(results[index])
                else:
                    answer.set_exception(error)
            room.finished(self._environment)
            on_end()

    async def result_of(self, invocation: Invocation) -> Result:
        """Wait for the result of one item. An error with which the whole batch failed is raised for each of its items.

        Raises:
            ServiceException: thawd stops before the batch has ended (500).
        """
        answer = next(answer for each, answer in self._items if each is invocation)
        try:
            return await answer
        except asyncio.CancelledError:
            self.leave(invocation)
            raise

    def leave(self, invocation: Invocation) -> None:
        """Drop an item whose caller has gone away. If the batch runs and no caller is left, kill the environment."""
        for each, answer in self._items:
            if each is invocation:
                answer.cancel()
        if self._running and all(answer.cancelled() for _, answer in self._items):
            self._environment.kill()
