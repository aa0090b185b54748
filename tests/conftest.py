"""For all tests: the signals that a person's terminal would give them, and examples that may take their time."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# Hypothesis fails an example that takes more than 0.2 s, and one that was slow to make: so does a busy machine.
settings.register_profile("thawd", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("thawd")


def pytest_configure() -> None:
    """A shell that starts us in the background has us ignore Ctrl-C, and every process we start would do so, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
