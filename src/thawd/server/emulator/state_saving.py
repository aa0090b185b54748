"""Decides when the emulator's state is saved: soon after requests that change it, and before the emulator exits.

This module runs in the emulator's own process; `thawd.server.emulator.state` does the saving. The emulator is moto; its
backends are the Python objects that contain the state of the emulated services.

Before the keeper copies that state, it lets no new request start, and waits for the running ones. So a saved state does
not contain only half of a request's changes. The keeper does not wait for long polls for messages, and waits for other
requests for at most a second. If it copies the state while such a request changes it, the next save contains the whole
change.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from thawd.server.emulator.state import EmulatedState, SavedState
from thawd.system.retry import SayOnce


class Keeper:
    """Saves the state of the emulated services after requests have changed it.

    The changes of several requests are written together, soon after the requests, and at the latest when the emulator
    ends. If the process is killed (SIGKILL), the changes since the last write began are lost: usually those of some
    tenths of a second, more if the state is so large that copying it takes long.

    Args:
        state: the saved state.
        complain: prints a line for the operator.
    """

    PAUSE_S = 0.1
    # The pause between two writes, as a multiple of the time that requests waited for the last one.
    _SHARE = 10
    # How long a save waits for running requests to finish.
    _QUIET_S = 1.0
    # The last save is tried several times: it fails if a long poll changes the state during the copy, or if the disk is
    # full for a moment.
    _LAST_TRIES = 10
    _LAST_PAUSE_S = 0.5

    def __init__(self, state: EmulatedState, *, complain: Callable[[str], None]) -> None:
        self._state = state
        self._reports = SayOnce(complain)
        self._turn = threading.Condition()
        self._running = 0
        self._held = False
        self._changed = threading.Event()
        self._ending = threading.Event()
        self._last: bytes | None = None
        self._wanted = 0  # how often `save_now` has been called
        self._done = 0  # the value of `_wanted` when the last successful save began
        self._waited_s = 0.0  # how long requests had to wait while the state was last copied
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread that saves changes."""
        self._thread.start()

    def enter(self) -> None:
        """Record that a request starts to work on the backends. Waits while their state is being copied."""
        with self._turn:
            self._turn.wait_for(lambda: not self._held)
            self._running += 1

    def leave(self, *, changed: bool) -> None:
        """Record that a request has finished; `changed` says whether it may have changed a backend."""
        with self._turn:
            self._running -= 1
            self._turn.notify_all()
        if changed:
            self._changed.set()

    def changed(self) -> None:
        """Record a change by a request that did not call `enter` and `leave`: a long poll for messages."""
        self._changed.set()

    def save_now(self, timeout_s: float) -> bool:
        """Wait until a save that began after this call has succeeded. Returns False after `timeout_s` seconds."""
        with self._turn:
            self._wanted += 1
            number = self._wanted
            self._changed.set()
            self._turn.notify_all()
            return self._turn.wait_for(lambda: self._done >= number, timeout_s)

    def end(self) -> None:
        """Save the last changes. Requests that arrive from now on are not served."""
        self._ending.set()
        self._changed.set()
        with self._turn:
            self._turn.notify_all()
        self._thread.join()
        with self._turn:
            self._held = True
            self._turn.wait_for(lambda: not self._running, self._QUIET_S)
        for _ in range(self._LAST_TRIES):
            if self._save(held=True):
                return
            time.sleep(self._LAST_PAUSE_S)
        self._say("thawd: the --aws emulator could not save its state when it ended; the last changes are lost")

    def _run(self) -> None:
        pause_s, may_hurry = self.PAUSE_S, True
        while not self._ending.is_set():
            self._changed.wait()
            if self._rest(pause_s, may_hurry=may_hurry):
                return
            self._changed.clear()
            with self._turn:
                number = self._wanted
            may_hurry = self._save(held=False)
            if may_hurry:
                with self._turn:
                    self._done = number
                    self._turn.notify_all()
            else:
                self._changed.set()  # so that the next round tries again
            pause_s = max(self.PAUSE_S, self._waited_s * self._SHARE)

    def _rest(self, pause_s: float, *, may_hurry: bool) -> bool:
        """Pause between two saves. Returns whether the emulator ends.

        With `may_hurry`, if a caller waits for a save, the pause is only as long as requests waited for the last save.
        """
        begun_s = time.monotonic()

        def is_urgent() -> bool:
            return self._ending.is_set() or (may_hurry and self._wanted > self._done)

        with self._turn:
            if not self._turn.wait_for(is_urgent, pause_s):
                return False
            rest_s = begun_s + min(self._waited_s, pause_s) - time.monotonic()
            return self._turn.wait_for(self._ending.is_set, max(0.0, rest_s))

    def _save(self, *, held: bool) -> bool:
        """Save the state. Returns False if that failed and must be tried again."""
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
            pass  # during the save, a request changed a backend or removed an S3 object; the save is tried again
        except OSError as error:
            self._say(
                f"thawd: the state of the --aws emulator could not be saved in the data folder: {error}; thawd tries "
                "again"
            )
        for service, why in self._state.left_out.items():
            self._say(f"thawd: --aws: the state of {service} cannot be saved and is lost when thawd ends: {why}")
        return is_saved

    def _write(self, saved: SavedState) -> None:
        if not self._state.can_be_loaded(saved):
            saved = self._state.take()
        self._state.write(saved)
        self._last = saved.pickled

    def _hold(self) -> None:
        """Block new requests, and wait for the running ones, for at most `_QUIET_S` seconds.

        If a request still runs then, the saved state may contain half of its changes. The next save corrects that.
        """
        with self._turn:
            self._held = True
            self._turn.wait_for(lambda: not self._running, self._QUIET_S)

    def _let_go(self) -> None:
        with self._turn:
            self._held = False
            self._turn.notify_all()

    def _say(self, text: str) -> None:
        self._reports.say(text, topic=text)


class Saving:
    """Reports changes to the keeper. If the emulator has no folder for its state, there is no keeper.

    Attributes:
        keeper: the keeper; None: it does not exist, or does not exist yet.
    """

    # How long `settle` waits.
    _SETTLE_S = 30.0

    def __init__(self) -> None:
        self.keeper: Keeper | None = None

    def changed(self) -> None:
        """Record a change."""
        if self.keeper is not None:
            self.keeper.changed()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Allow changes of backends within the ``with`` block. The state is not copied meanwhile."""
        keeper = self.keeper
        if keeper is None:
            yield
            return
        keeper.enter()
        try:
            yield
        finally:
            keeper.leave(changed=True)

    def settle(self) -> None:
        """Wait until all changes are saved."""
        if self.keeper is not None:
            self.keeper.save_now(self._SETTLE_S)
