"""Messages that were received from an SQS queue, batches of them, and a source's figures. State only."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from thawd.control.mapping_records import UNPROCESSED
from thawd.sources.sqs.client import MOST_AT_ONCE, RawMessage


@dataclass(slots=True)
class ReceivedMessage:
    """A message that was received.

    Attributes:
        raw: the message as boto3 returns it.
        content: what `Receiver` makes of it, such as a record of Lambda's event.
        received_at: when it was received, ``time.monotonic()`` seconds.
        held_until: up to when no other client receives it, ``time.monotonic()`` seconds.
        hold_s: visibility timeout that was set last, seconds.
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
        """Receipt handle; deletes the message."""
        return str(self.raw["ReceiptHandle"])


@dataclass(frozen=True, slots=True)
class Batching:
    """How messages are gathered into batches.

    Attributes:
        most: most messages in a batch.
        window_s: how long to gather, seconds from the first message; 0: the first messages received are the batch.
        most_bytes: most bytes of the contents of a batch together; a larger message goes alone.
        ordered: whether the queue is FIFO: messages that do not fit wait until the batch before them has succeeded.
    """

    most: int = MOST_AT_ONCE
    window_s: float = 0.0
    most_bytes: int = 6_000_000
    ordered: bool = False


@dataclass(slots=True)
class SourceProgress:
    """The figures of a source so far.

    Attributes:
        received: messages received, with those that no pattern matches.
        filtered: messages that no pattern matches.
        failed: messages that were handled and failed.
        troubles: times in a row that the queue could not be read.
        trouble: why the queue cannot be read now; None: it can.
        last_result: result of the last batch, in the words of ``LastProcessingResult``.
        waiting: about how many messages wait; None: not known.
        in_flight: about how many messages are received and not deleted; None: not known.
        oldest_s: age of the oldest message received last, seconds; 0 when there was none.
    """

    received: int = 0
    filtered: int = 0
    failed: int = 0
    troubles: int = 0
    trouble: str | None = None
    last_result: str = UNPROCESSED
    waiting: int | None = None
    in_flight: int | None = None
    oldest_s: float = 0.0


class Batch:
    """Messages that a function handles together.

    Args:
        before: the batch that has to succeed first; None: no batch has to.

    Attributes:
        messages: the messages, in the order of their reception.
        succeeded: whether all messages were handled, and deleted.
        over: set when the messages need not be held any more.
        holding: the task that keeps the messages from other clients.
    """

    def __init__(self, before: Batch | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.succeeded = False
        self.over = asyncio.Event()
        self.holding: asyncio.Task[None] | None = None
        self._size_bytes = 0
        self._before = before

    async def may_begin(self) -> bool:
        """Wait for the batch before this one; whether that has succeeded."""
        before, self._before = self._before, None
        if before is None:
            return True
        await before.over.wait()
        return before.succeeded

    def takes(self, content: bytes, batching: Batching) -> bool:
        """Whether there is room for one more message."""
        return not self.messages or self._size_bytes + len(content) + 1 <= batching.most_bytes

    def add(self, message: ReceivedMessage) -> None:
        """Add one message."""
        self.messages.append(message)
        self._size_bytes += len(message.content) + 1

    async def let_go(self) -> None:
        """Hold the messages no longer; when this returns, the task that held them has ended."""
        self.over.set()
        if self.holding is not None:
            await asyncio.wait({self.holding})
