"""The time by which a starting environment must be ready."""

from __future__ import annotations

import time

from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError, error_document

# The copy itself interrupts its after-restore hooks after 10 s. It cannot if they hang in native code, so the platform
# ends the copy a second later.
_AFTER_HOOKS_S = 11.0


class ReadyDeadline:
    """The deadline for an environment to be ready. When the after-restore hooks begin, they get a new deadline.

    Args:
        environment: the environment.
        limit_s: how long its start may take from now until it is ready, or until the hooks begin, seconds.
    """

    def __init__(self, environment: Environment, limit_s: float) -> None:
        self._environment = environment
        self._limit_s = limit_s
        self._until_s = time.monotonic() + limit_s

    def until_s(self) -> float:
        """Return the current deadline, ``time.monotonic()`` seconds."""
        hooks_since_s = self._environment.hooks_since_s
        return self._until_s if hooks_since_s is None else hooks_since_s + _AFTER_HOOKS_S

    def timed_out(self) -> InitError:
        """Return the error for an environment that is not ready at the deadline."""
        if self._environment.hooks_since_s is None:
            return InitError.of_time_out(self._limit_s)
        message = f"The after-restore hooks took longer than {_AFTER_HOOKS_S:.0f} seconds"
        return InitError(message, error_document("Runtime.AfterRestoreError", message), by_function=True)
