"""Classes for messages received from an SQS queue and their batches. They do not call SQS."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from thawd.sources.sqs.client import MOST_AT_ONCE, RawMessage


@dataclass(slots=True)
class ReceivedMessage:
    """A message that was received.

    Attributes:
        raw: the message as boto3 returns it.
        content: what the argument `open_` of `Receiver` made of the message, such as a record of Lambda's event.
        received_at: when it was received, ``time.monotonic()`` seconds.
        held_until: no other client receives the message before this time, ``time.monotonic()`` seconds.
        hold_s: the visibility timeout that was set last, seconds.
    """

    raw: RawMessage
    content: bytes
    received_at: float = field(default_factory=time.monotonic)
    held_until: float = 0.0
    hold_s: float = 0.0

    @property
    def id(self) -> str:
        """The message's id."""
        return str(self.raw["MessageId"])

    @property
    def handle(self) -> str:
        """The receipt handle, with which the message can be deleted."""
        return str(self.raw["ReceiptHandle"])


@dataclass(frozen=True, slots=True)
class Batching:
    """How messages are gathered into batches.

    Attributes:
        most: most messages in a batch.
        window_s: how long to gather, seconds from the first message; 0: the messages of one reception are the batch.
        most_bytes: limit for the sum of the contents of a batch; a larger message gets a batch of its own.
        ordered: whether the queue is FIFO. If so, what does not fit in a batch waits until the batch has succeeded.
    """

    most: int = MOST_AT_ONCE
    window_s: float = 0.0
    most_bytes: int = 6_000_000
    ordered: bool = False


class Batch:
    """Messages that a function handles together.

    Args:
        before: in a FIFO queue, the batch that must succeed before this one; None: there is none.

    Attributes:
        messages: the messages, in the order of their reception.
        succeeded: whether all messages were handled and deleted.
        over: set when the messages no longer have to be held.
        holding: the task that keeps other clients from receiving the messages.
    """

    def __init__(self, before: Batch | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.succeeded = False
        self.over = asyncio.Event()
        self.holding: asyncio.Task[None] | None = None
        self._size_bytes = 0
        self._before = before

    async def may_begin(self) -> bool:
        """Wait until the batch before this one, if any, has ended. Return whether that batch succeeded."""
        before, self._before = self._before, None
        if before is None:
            return True
        await before.over.wait()
        return before.succeeded

    def takes(self, content: bytes, batching: Batching) -> bool:
        """Return whether a message with this content fits in the batch."""
        return not self.messages or self._size_bytes + len(content) + 1 <= batching.most_bytes

    def add(self, message: ReceivedMessage) -> None:
        """Add one message."""
        self.messages.append(message)
        self._size_bytes += len(message.content) + 1

    async def let_go(self) -> None:
        """Stop holding the messages. When this returns, the task that held them has ended."""
        self.over.set()
        if self.holding is not None:
            await asyncio.wait({self.holding})
