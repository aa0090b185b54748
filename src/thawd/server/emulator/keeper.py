"""When the emulator's state is written: soon after requests that change something, and at the end.

Stands between the requests and `thawd.server.emulator.state`, in the emulator's own process: no request works on the
backends while their state is taken, so that no half of a request is in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from thawd.server.emulator.state import EmulatedState, SavedState


class Keeper:
    """Keeps a state on the disk while requests change the backends.

    A change is written soon after the request, several together; at the latest when the emulator ends. A process that
    is killed with -9 loses what was changed since the last writing began, some tenths of a second.

    Args:
        state: where to.
        complain: told what an operator should know.
    """

    PAUSE_S = 0.1
    # So many times as long as it took to take the state: requests wait for that.
    _SHARE = 10
    _QUIET_S = 1.0
    # At the end: a poll that goes on may be in the way, or a disk that is full for a moment.
    _LAST_TRIES = 10
    _LAST_PAUSE_S = 0.5

    def __init__(self, state: EmulatedState, *, complain: Callable[[str], None]) -> None:
        self._state = state
        self._complain = complain
        self._told: set[str] = set()
        self._turn = threading.Condition()
        self._running = 0
        self._held = False
        self._changed = threading.Event()
        self._ending = threading.Event()
        self._last: bytes | None = None
        self._waited_s = 0.0  # by requests, while the state was last taken
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Write from now on."""
        self._thread.start()

    def enter(self) -> None:
        """A request begins to work on the backends; waits while their state is taken."""
        with self._turn:
            self._turn.wait_for(lambda: not self._held)
            self._running += 1

    def leave(self, *, changed: bool) -> None:
        """It has done."""
        with self._turn:
            self._running -= 1
            self._turn.notify_all()
        if changed:
            self._changed.set()

    def changed(self) -> None:
        """Something has been changed outside `enter` and `leave`."""
        self._changed.set()

    def end(self) -> None:
        """Write what has changed; requests are served no more."""
        self._ending.set()
        self._changed.set()
        self._thread.join()
        with self._turn:
            self._held = True
            self._turn.wait_for(lambda: not self._running, self._QUIET_S)
        for _ in range(self._LAST_TRIES):
            if self._save(held=True):
                return
            time.sleep(self._LAST_PAUSE_S)
        self._say("thawd: what --aws emulates could not be written at the end; what was changed last is lost")

    def _run(self) -> None:
        pause_s = self.PAUSE_S
        while not self._ending.is_set():
            self._changed.wait()
            if self._ending.wait(pause_s):
                return
            self._changed.clear()
            if not self._save(held=False):
                self._changed.set()  # again
            pause_s = max(self.PAUSE_S, self._waited_s * self._SHARE)

    def _save(self, *, held: bool) -> bool:
        """Write the state as it is now; False: it could not be, and is to be tried again."""
        is_saved = False
        try:
            begun_s = time.monotonic()
            try:
                if not held:
                    self._hold()
                saved = self._state.take()
            finally:
                if not held:
                    self._let_go()
                self._waited_s = time.monotonic() - begun_s
            if saved.pickled != self._last:
                self._write(saved)
            is_saved = True
        except (RuntimeError, ValueError):
            pass  # a request that polls changed something meanwhile, or removed an object
        except OSError as error:
            self._say(f"thawd: what --aws emulates could not be written to the data folder: {error}; it is tried again")
        for service, why in self._state.left_out.items():
            self._say(f"thawd: --aws: what {service} holds is not kept when thawd ends: {why}")
        return is_saved

    def _write(self, saved: SavedState) -> None:
        if not self._state.can_be_loaded(saved):
            saved = self._state.take()
        self._state.write(saved)
        self._last = saved.pickled

    def _hold(self) -> None:
        """Let no request begin, and wait until none works, but not for ever: what one half did, the next time mends."""
        with self._turn:
            self._held = True
            self._turn.wait_for(lambda: not self._running, self._QUIET_S)

    def _let_go(self) -> None:
        with self._turn:
            self._held = False
            self._turn.notify_all()

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            with suppress(OSError):
                self._complain(text)
