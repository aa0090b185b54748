"""Ctrl-C before the program has begun: while it is imported, or its arguments read. Imports next to nothing itself."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it, Ctrl-C ends the process as the signal does.

    For imports: an exception that is raised in the middle of one may be swallowed by the interpreter, and with it the
    person's wish; and there is nothing yet to be put in order.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield  # a shell had it ignored, say
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raising() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, also within `interruptible`; where it is ignored it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
