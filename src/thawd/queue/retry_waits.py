"""How long an event waits after a failed attempt until it runs again. No side effects. All times are in seconds.

Source: AWS Lambda developer guide, "Error handling and retries for asynchronous invocation".
"""

from __future__ import annotations

from thawd.system.retry import backoff_s

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0


def wait_after_function_error_s(failed_attempts: int, *, first_s: float) -> float:
    """Return the wait after an attempt in which the function failed. It doubles with each failed attempt.

    Args:
        failed_attempts: number of failed attempts, including the last one.
        first_s: the wait after the first failed attempt.
    """
    return backoff_s(failed_attempts, first_s=first_s)


def wait_after_platform_error_s(age_s: float) -> float:
    """Return the wait after an attempt that failed because of thawd, not because of the function.

    The wait is the event's age, at least `FIRST_WAIT_S` and at most `LONGEST_WAIT_S`.
    """
    return min(LONGEST_WAIT_S, max(FIRST_WAIT_S, age_s))
