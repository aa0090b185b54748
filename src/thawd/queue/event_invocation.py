"""The invocation that runs a stored event."""

from __future__ import annotations

import time

from thawd.invocation import Invocation
from thawd.stores.events.event_rows import Event


def invocation_of(event: Event, *, wait_s: float) -> Invocation:
    """Return the invocation that runs an event. It may wait `wait_s` seconds for an environment."""
    return Invocation(
        event.function,
        event.payload,
        time.monotonic() + wait_s,
        event.request_id,
        client_context=event.client_context,
        trace_id=event.trace_id,
        asynchronous=True,
        qualifier=event.qualifier,
        tenant_id=event.tenant_id,
        queued_at=0.0 if event.attempts or event.interruptions else event.accepted_at,
        alone=event.attempts > 0 or event.interruptions > 0,  # this event may be the one that made its last batch fail
    )
