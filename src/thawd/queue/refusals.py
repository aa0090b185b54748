"""The reasons for which a stored event must not run, so that it becomes a dead letter. No side effects."""

from __future__ import annotations

from thawd.errors import InvalidParameterValueException
from thawd.queue.outcome_delivery import DeadLetterCause
from thawd.resources import Function
from thawd.scheduling.tenant_pools import check_tenant
from thawd.stores.events.event_rows import Event

# If the server has died this many times while an event ran, the event is not run again.
_POISON = 10


class NotNowError(Exception):
    """The event goes back into its lane, because its function is throttled or removed, or the server is stopping."""


def refusal_of(event: Event, function: Function, age_s: float) -> DeadLetterCause | None:
    """Return why an event must not run (any more); None: the event may run."""
    if age_s > function.maximum_event_age_s:
        return DeadLetterCause("EventAgeExceeded", "EventAgeExceeded")
    if function.reserved_concurrency == 0:
        # Source: Lambda developer guide, "Capturing records of Lambda asynchronous invocations": an event of a function
        # whose reserved concurrency is 0 is not retried.
        return DeadLetterCause("the function's reserved concurrency is 0", "ZeroReservedConcurrency")
    try:
        check_tenant(function, event.tenant_id)
    except InvalidParameterValueException as error:
        return DeadLetterCause(error.message, "InvalidTenant")
    if event.interruptions >= _POISON:
        return DeadLetterCause(f"the server died {event.interruptions} times while this event ran", "Interrupted")
    return None
