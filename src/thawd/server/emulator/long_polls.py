"""Makes long polls of emulated SQS queues see what becomes visible meanwhile. Runs in the emulator's own process.

moto's long poll decides once, at its beginning, which message groups of a FIFO queue are free. If a queue has only
messages that must not be delivered yet, it looks at them again and again without a pause. Here a long poll is a series
of short ones with pauses between them.
"""

from __future__ import annotations

import time
from typing import Any

_LOOK_S = 0.02
# A message becomes visible again without notice, so that a queue without visible messages is looked at so often.
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
