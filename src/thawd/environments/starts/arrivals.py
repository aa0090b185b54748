"""Follows images that arrive while copies of them run, until they are in the store or cannot be had.

When an image is whole and in the store, later copies are thawed from the file there. Earlier copies go on with the file
that they map. If contents cannot be had, or turn out to be wrong, all copies are killed before one of them learns it.
Their invocations fail as when an environment crashes, and the next start runs init.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from thawd.environments.starts.file_listing import Arrival
from thawd.environments.starts.frozen_images import Frozen
from thawd.environments.starts.image_making import Snapshots
from thawd.environments.starts.origin import Origin
from thawd.errors import ThawdError

# The server's loop turns within milliseconds. If it does not, copies that need missing contents die by a signal.
_LONGEST_WAIT_S = 30.0


class Arrivals:
    """The images of one server that arrive.

    Args:
        report: called with an origin and a line for the operator.
    """

    def __init__(self, report: Callable[[Origin, str], object]) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, snapshots: Snapshots, origin: Origin) -> None:
        """Follow the image of `origin`, if it arrives and is not followed yet. Call this before a copy serves."""
        frozen = origin.frozen
        if frozen is None or (arrival := frozen.arrival) is None:
            return
        loop, over = asyncio.get_running_loop(), threading.Event()

        def fail_now(why: str) -> None:
            if not over.is_set():
                self._fail(snapshots, origin, frozen, why)
            over.set()

        def fail(why: str) -> None:
            try:
                loop.call_soon_threadsafe(fail_now, why)
            except RuntimeError:
                return  # the server has ended
            over.wait(_LONGEST_WAIT_S)

        if why := arrival.listen(fail):
            fail_now(why)
            return
        task = loop.create_task(self._settle(snapshots, origin, frozen, arrival))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, snapshots: Snapshots, origin: Origin, frozen: Frozen, arrival: Arrival) -> None:
        """Let copies be thawed from the store as soon as the image is there."""
        try:
            stored = await arrival.whole()
            await snapshots.settle(frozen, stored, is_used=lambda: origin.frozen is frozen)
        except ThawdError:
            return  # `_fail` has ended the copies; or the image serves from where it is until the server ends
        if origin.superseded:
            await snapshots.remove(stored)

    def _fail(self, snapshots: Snapshots, origin: Origin, frozen: Frozen, why: str) -> None:
        if origin.frozen is frozen:
            origin.frozen = None
        frozen.thawable.image_fd = -1  # a start that has begun finds no image
        for end in list(frozen.thawable.copies.values()):
            end("its image could not be received")
        self._report(origin, f"its image could not be received, so its copies were ended: {why}")
        task = asyncio.get_running_loop().create_task(snapshots.release(frozen))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
