"""Ctrl-C while modules are imported or arguments parsed. Imports almost nothing itself."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside the ``with`` block, Ctrl-C ends the process immediately, as the signal does by default.

    This is for imports. The interpreter may swallow a KeyboardInterrupt that is raised in the middle of one, and
    there is nothing to clean up yet.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield  # the signal is ignored, for example by a shell that runs us in the background
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, also inside `interruptible`; an ignored signal stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
