"""Messages of an SQS queue on their way: single ones, batches of them, and what has come of a source."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from thawd.control.mapping_records import UNPROCESSED
from thawd.sources.sqs.client import MOST_AT_ONCE, RawMessage


@dataclass(slots=True)
class Letter:
    """A message that was received.

    Attributes:
        raw: as boto3 gives it.
        content: what is made of it.
        received_at: ``time.monotonic()`` seconds.
        held_until: until when nobody else receives it, ``time.monotonic()`` seconds.
        hold_s: for how long that was, seconds.
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
        """What it is deleted by."""
        return str(self.raw["ReceiptHandle"])


@dataclass(frozen=True, slots=True)
class Batching:
    """How messages are gathered.

    Attributes:
        most: messages of a batch.
        window_s: how long to gather, seconds from the first message; 0: what comes first goes.
        most_bytes: of the contents of a batch together; a message that is larger goes alone.
        ordered: whether what does not fit has to wait until the batch before it has succeeded: the queue is FIFO.
    """

    most: int = MOST_AT_ONCE
    window_s: float = 0.0
    most_bytes: int = 6_000_000
    ordered: bool = False


@dataclass(slots=True)
class SourceProgress:
    """What has come of a source so far.

    Attributes:
        received: messages received, those that are not wanted included.
        filtered: of these, those that are not wanted.
        failed: messages that were handled and failed.
        troubles: times that the queue could not be read.
        trouble: why it cannot be read now; None: it can.
        last_result: of the last batch, in the words of ``LastProcessingResult``.
        waiting: about how many messages wait; None: not known.
        in_flight: about how many are received and not deleted; None: not known.
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
    """Messages that go together.

    Args:
        before: the one that has to succeed first; None: there is none.

    Attributes:
        letters: they, in the order of their reception.
        succeeded: whether all of them were handled, and deleted.
        over: set when nobody needs to hold them any more.
        holding: what holds them.
    """

    def __init__(self, before: Batch | None = None) -> None:
        self.letters: list[Letter] = []
        self.succeeded = False
        self.over = asyncio.Event()
        self.holding: asyncio.Task[None] | None = None
        self._size_bytes = 0
        self._before = before

    async def may_begin(self) -> bool:
        """Wait for the one before it; whether that has succeeded."""
        before, self._before = self._before, None
        if before is None:
            return True
        await before.over.wait()
        return before.succeeded

    def takes(self, content: bytes, batching: Batching) -> bool:
        """Whether there is room for one more."""
        return not self.letters or self._size_bytes + len(content) + 1 <= batching.most_bytes

    def add(self, letter: Letter) -> None:
        """One more."""
        self.letters.append(letter)
        self._size_bytes += len(letter.content) + 1

    async def let_go(self) -> None:
        """Hold them no longer; when this returns nothing of that is under way."""
        self.over.set()
        if self.holding is not None:
            await asyncio.wait({self.holding})
