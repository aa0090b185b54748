"""Events that were interrupted: each is perhaps the reason why a server died while it ran."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from thawd.errors import StoreError
from thawd.queue.refusals import NotNowError
from thawd.stores.events.copies import Copies
from thawd.stores.events.event_rows import Event

# If the server has died this many times while an event ran, the event is suspected to be the cause. From then on it
# waits until no other suspected event runs. Events that are not suspected can run at the same time.
_SUSPECT = 3


class Suspects:
    """Runs interrupted events so that it can be found out which of them makes servers die.

    Args:
        copies: keeps copies of the events; None: there are no copies.
    """

    def __init__(self, copies: Copies | None) -> None:
        self._copies = copies
        self._alone = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def running(self, event: Event) -> AsyncIterator[None]:
        """A context in which an interrupted event runs. Its copy says so, for the case that this machine dies.

        Raises:
            NotNowError: the copy cannot be changed now.
        """
        async with contextlib.AsyncExitStack() as stack:
            if event.interruptions >= _SUSPECT:
                await stack.enter_async_context(self._alone)
            if self._copies is None:
                yield
                return
            try:
                await self._copies.note_run(event.id, runs=True)
            except StoreError:
                raise NotNowError from None
            try:
                yield
            finally:
                with contextlib.suppress(StoreError):
                    await self._copies.note_run(event.id, runs=False)
