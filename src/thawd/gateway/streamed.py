"""An invocation whose answer is passed on while the function makes it.

The client's reading sets the pace: what it has not read stays in the function (`thawd.wire.response_stream`). A
client that goes away does not end the function, as on Lambda: what follows is dropped.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from thawd.invocation import Invocation, Result
from thawd.scheduling.dispatcher import Dispatcher
from thawd.wire.response_stream import ResponseStream


class Streamed:
    """Runs an invocation for as long as the ``async with`` lasts.

    Attributes:
        stream: the answer's parts.
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
        """Wait for the answer's first part; False: there is none, and all there is is in `result`.

        Raises:
            ThawdError: the function could not be run; only where there is no part.
        """
        if await self.stream.begun():
            return True
        await self.result()
        return False

    async def result(self) -> Result:
        """What became of the invocation, once it is over.

        Raises:
            ThawdError: the function could not be run.
        """
        return await self._running

    async def drop(self) -> Result:
        """Let the function end; nobody wants the rest of its answer."""
        while await self.stream.take() is not None:
            pass
        return await self._running

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._running.done():
            self._running.cancel()
        # Whatever it ended with was told by `result`, or nobody is there to be told.
        await asyncio.gather(self._running, return_exceptions=True)
