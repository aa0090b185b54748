"""An invocation whose answer is sent to the client while the function produces it.

The client sets the pace: if it reads slowly, the function's next write waits (`thawd.wire.response_stream`). As on
Lambda, the function continues when the client disconnects, and the rest of the function's answer is dropped.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from thawd.invocation import Invocation, Result
from thawd.scheduling.dispatcher import Dispatcher
from thawd.wire.response_stream import ResponseStream


class Streamed:
    """Runs an invocation during an ``async with`` block. The end of the block cancels an invocation that still runs.

    Attributes:
        stream: the parts of the answer.
    """

    def __init__(self, dispatcher: Dispatcher, invocation: Invocation) -> None:
        self.stream = invocation.stream = ResponseStream()
        self._dispatcher = dispatcher
        self._invocation = invocation

    async def __aenter__(self) -> Streamed:
        self._running = asyncio.get_running_loop().create_task(self._run())
        return self

    async def _run(self) -> Result:
        try:
            return await self._dispatcher.invoke(self._invocation)
        finally:
            self.stream.end()

    async def begun(self) -> bool:
        """Wait for the answer's first part. False: the answer is not streamed, and `result` returns all of it.

        Raises:
            ThawdError: the function could not be run. This is not raised after a part has arrived.
        """
        if await self.stream.begun():
            return True
        await self.result()
        return False

    async def result(self) -> Result:
        """Wait for the end of the invocation and return its result.

        Raises:
            ThawdError: the function could not be run.
        """
        return await self._running

    async def drop(self) -> Result:
        """Read and drop the rest of the answer until the function ends; returns the invocation's result."""
        while await self.stream.take() is not None:
            pass
        return await self._running

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._running.done():
            self._running.cancel()
        # An error of the invocation is ignored here: `result` or `drop` has raised it already, or the request was
        # cancelled.
        await asyncio.gather(self._running, return_exceptions=True)
