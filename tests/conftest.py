"""For all tests: the signals that a person's terminal would give them."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell that starts us in the background has us ignore Ctrl-C, and every process we start would do so, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
