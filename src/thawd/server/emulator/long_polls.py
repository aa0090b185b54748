"""Makes long polls of emulated SQS queues return messages that become visible meanwhile.

This module runs in the emulator's own process. moto's long poll decides only at its beginning which message groups of a
FIFO queue are free. If a queue contains only messages that are not visible yet, moto checks them without a pause. Here
a long poll is a series of short polls with pauses between them.
"""

from __future__ import annotations

import time
from typing import Any

# Pause between two short polls of a queue that contains messages.
_LOOK_S = 0.02
# Longest pause while a queue contains no messages. moto wakes the poll when a new message arrives, but not when a
# message becomes visible again.
_VISIBLE_S = 0.25


def install() -> None:
    """Change ``moto.sqs.models``: replace the long poll."""
    from moto.sqs.models import SQSBackend

    receive_once = SQSBackend.receive_message

    def receive(backend: Any, queue_name: str, count: int, wait_seconds_timeout: int, *given: Any, **named: Any) -> Any:
        end = time.monotonic() + wait_seconds_timeout
        while True:
            received = receive_once(backend, queue_name, count, 0, *given, **named)
            left_s = end - time.monotonic()
            if received or left_s <= 0:
                return received
            queue = backend.get_queue(queue_name)
            if queue.messages:
                time.sleep(min(_LOOK_S, left_s))
            else:
                queue.wait_for_messages(min(_VISIBLE_S, left_s))

    setattr(SQSBackend, "receive_message", receive)  # noqa: B010 - mypy forbids to assign to a method
