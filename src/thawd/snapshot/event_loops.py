"""asyncio's loops that run in other threads while the process is frozen: what they need in a copy.

asyncio notes for each running loop the process id it was started in, so that a fork does not take its parent's loop for
its own; a copy has another id, and code in the loop would be told that there is no running event loop. So loops stand
still while the process is frozen, and note the id anew when they go on. Standard library only, Python 3.9 and later;
loads nothing. Source: CPython, Modules/_asynciomodule.c, get_running_loop.
"""

from __future__ import annotations

import _thread
import gc
import sys
import time
from collections.abc import Iterable
from typing import Any

HOLD_S = 5.0
_LOOK_AGAIN_S = 0.0005


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


class Held:
    """Loops that stand still between two callbacks, from `hold` to `release`.

    One that is frozen inside of a callback would go on there in a copy, and be told that no loop is running.
    """

    def __init__(self, loops: Iterable[Any]) -> None:
        self._loops = list(loops)
        self._gates = [_thread.allocate_lock() for _ in self._loops]
        self._standing = _thread.allocate_lock()
        self._count = 0

    def hold(self) -> bool:
        """Have all loops stand still; whether they do within `HOLD_S` seconds."""
        for loop, gate in zip(self._loops, self._gates):  # noqa: B905 - `strict` came with Python 3.10
            gate.acquire()
            loop.call_soon_threadsafe(self._stand, loop, gate)
        end_s = time.monotonic() + HOLD_S
        while self._count < len(self._loops) and time.monotonic() < end_s:
            time.sleep(_LOOK_AGAIN_S)
        return self._count == len(self._loops)

    def release(self) -> None:
        """Let the loops go on; each first notes the process that it runs in, which in a copy is another one."""
        for gate in self._gates:
            if gate.locked():
                gate.release()

    def _stand(self, loop: Any, gate: Any) -> None:
        events: Any = sys.modules["asyncio.events"]
        with self._standing:
            self._count += 1
        gate.acquire()
        events._set_running_loop(loop)


def _objects() -> list[Any]:
    """All that the collector knows, what `gc.freeze` took from its sight included."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    objects = gc.get_objects()
    gc.freeze()
    return objects
