"""Handles Ctrl-C while modules are imported or arguments parsed. This module itself imports almost nothing."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside the ``with`` block, Ctrl-C ends the process immediately, as the signal does by default.

    Use it around imports. Python may swallow a KeyboardInterrupt that is raised during an import, and nothing has to
    be cleaned up yet.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield  # the signal is ignored, for example because a shell runs thawd in the background
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, even inside `interruptible`. An ignored signal stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
