"""asyncio's loops that run in other threads while the process is frozen: what they need in a copy.

asyncio notes for each running loop the process id it was started in, so that a fork does not take its parent's loop for
its own; a copy has another id, and code in the loop would be told that there is no running event loop. Standard library
only, Python 3.9 and later; loads nothing. Source: CPython, Modules/_asynciomodule.c, get_running_loop.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any


def running() -> list[Any]:
    """The loops that run in some thread of this process."""
    events = sys.modules.get("asyncio.events")
    if events is None:
        return []
    # By `type`: asking an object for its class may wake one that loads itself when it is looked at.
    return [thing for thing in _objects() if issubclass(type(thing), events.AbstractEventLoop) and thing.is_running()]


def runs_here() -> bool:
    """Whether the calling thread is inside of a running loop."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


def announce_first(loops: Iterable[Any]) -> None:
    """Have each loop note the process it runs in before it does anything else.

    Before the freeze, for a copy in which the loop's thread is the first to run; and in the copy, for a loop that has
    done so in the original already. Calls nothing that would let another thread run, where the loop is asyncio's own.
    """
    events: Any = sys.modules.get("asyncio.events")
    for loop in loops:
        ready: Any = getattr(loop, "_ready", None)
        if hasattr(ready, "appendleft"):
            ready.appendleft(events.Handle(events._set_running_loop, (loop,), loop))


def wake(loops: Iterable[Any]) -> None:
    """Let loops that wait do what is ready."""
    events: Any = sys.modules.get("asyncio.events")
    for loop in loops:
        if not loop.is_closed():
            loop.call_soon_threadsafe(events._set_running_loop, loop)


def _objects() -> list[Any]:
    """All that the collector knows, what `gc.freeze` took from its sight included."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    objects = gc.get_objects()
    gc.freeze()
    return objects
