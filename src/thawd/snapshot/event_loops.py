"""Pauses asyncio loops of other threads while the process is frozen, and repairs them in each thawed copy.

asyncio records the process id with each running loop, so that a forked child does not mistake its parent's loop for its
own. A copy has another process id, so `asyncio.get_running_loop` would fail in the loop's callbacks. Loops are
therefore paused during the freeze and record the process id again when they continue.

Standard library only, Python 3.9 and later; imports no module that the program has not imported.
Source: CPython, Modules/_asynciomodule.c, get_running_loop.
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
    """The event loops that are running in any thread of this process."""
    events = sys.modules.get("asyncio.events")
    if events is None:
        return []
    # Uses `type`, because `isinstance` reads `__class__`, which would make a lazily loaded object load itself.
    return [item for item in _objects() if issubclass(type(item), events.AbstractEventLoop) and item.is_running()]


def runs_here() -> bool:
    """Whether the calling thread is inside a running loop."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


class PausedLoops:
    """Event loops that are paused between two callbacks, from `hold` to `release`.

    If a loop were frozen inside a callback, the callback would continue in the copy, and its calls of
    `asyncio.get_running_loop` would fail there.
    """

    def __init__(self, loops: Iterable[Any]) -> None:
        self._loops = list(loops)
        self._gates = [_thread.allocate_lock() for _ in self._loops]
        self._counting = _thread.allocate_lock()
        self._paused = 0

    def hold(self) -> bool:
        """Pause all loops; returns whether all of them paused within `HOLD_S` seconds."""
        for loop, gate in zip(self._loops, self._gates):  # noqa: B905 - `strict` came with Python 3.10
            gate.acquire()
            loop.call_soon_threadsafe(self._pause, loop, gate)
        end_s = time.monotonic() + HOLD_S
        while self._paused < len(self._loops) and time.monotonic() < end_s:
            time.sleep(_LOOK_AGAIN_S)
        return self._paused == len(self._loops)

    def release(self) -> None:
        """Let the loops continue. Each first records the current process id, which is a new one in a copy."""
        for gate in self._gates:
            if gate.locked():
                gate.release()

    def _pause(self, loop: Any, gate: Any) -> None:
        events: Any = sys.modules["asyncio.events"]
        with self._counting:
            self._paused += 1
        gate.acquire()
        events._set_running_loop(loop)


def _objects() -> list[Any]:
    """All objects that the garbage collector tracks, including those that `gc.freeze` set aside."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    objects = gc.get_objects()
    gc.freeze()
    return objects
