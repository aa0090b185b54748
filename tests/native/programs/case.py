"""The harness of the programs beside this one, as native/tests/harness.h is for programs in C.

    @case("what is claimed")
    def name() -> None:
        prepare something
        freeze()
        assert that it is all there

``python PROGRAM CASE IMAGE`` runs one case. The process that freezes prints ``frozen`` and waits to be killed. Each
copy runs the checks and prints ``pass``. With THAWD_TEST=goes-on the original runs the checks too. Runs on Python 3.9.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from thawd.snapshot import engine

DEADLINE_S = 120.0
LOOK_AGAIN_S = 0.001
_cases: dict[str, Callable[[], None]] = {}


def case(claim: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a case. `claim` says what it shows."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        _cases[function.__name__] = function
        return function

    assert len(claim) > 10
    return register


def freeze(**options: Any) -> engine.FreezeOutcome:
    """Freeze, and return where the checks are to run: in a copy, or in an original that continues."""
    outcome = engine.freeze(sys.argv[2], **options)
    if not outcome.restored:
        os.write(1, b"frozen\n")
        while os.environ.get("THAWD_TEST") != "goes-on":
            signal.pause()
    return outcome


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Poll until `condition` holds.

    Raises:
        AssertionError: it did not within DEADLINE_S seconds.
    """
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, f"in time: {what or condition}"
        time.sleep(LOOK_AGAIN_S)


class Worker(threading.Thread):
    """A daemon thread that passes its exception to the thread that joins it."""

    def __init__(self, run: Callable[[], Any], name: str = "worker") -> None:
        super().__init__(name=name, daemon=True)
        self._run_it = run
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._run_it()
        except BaseException as error:
            self.error = error

    def end(self) -> Any:
        """Wait until the thread ends and return its result."""
        self.join(DEADLINE_S)
        assert not self.is_alive(), f"{self.name} did not end"
        if self.error is not None:
            raise self.error
        return self.result


def main() -> None:
    """Run the case that the command line names."""
    _cases[sys.argv[1]]()
    print("pass")
