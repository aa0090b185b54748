"""Handles Ctrl-C while modules are imported or arguments parsed. This module itself imports almost nothing."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside the ``with`` block, Ctrl-C ends the process immediately, as the signal does by default.

    Use it around imports. If Ctrl-C raised a KeyboardInterrupt during an import, some imported code might catch it, and
    the command would continue. Ending the process is safe at that point, because nothing has to be cleaned up yet.
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
    """Let Ctrl-C raise KeyboardInterrupt again, even inside `interruptible`. If SIGINT is ignored, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
