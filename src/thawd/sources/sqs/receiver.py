"""Receives batches of messages from an SQS queue, passes them to a handler, and deletes the handled ones.

Guarantee: each message that is wanted is handled at least once. It is deleted only after `handle` has returned without
naming it as failed. Until then it is held: the receiver keeps other clients from receiving it. A failed message is
received again when the queue's visibility timeout, counted from the message's reception, is over. The queue's redrive
policy limits how often, and says where the message goes then. A crash counts as a failure.

Source: Amazon SQS developer guide, "Amazon SQS visibility timeout"; AWS Lambda developer guide, "Using Lambda with
Amazon SQS".
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

from thawd.control.event_source_mapping_records import UNPROCESSED
from thawd.errors import NoThreadError
from thawd.sources.aws_calls import SourceError
from thawd.sources.progress import SourceProgress
from thawd.sources.sqs.batch import Batch, Batching, ReceivedMessage
from thawd.sources.sqs.client import LONGEST_POLL_S, MOST_AT_ONCE, QueueLook, RawMessage, SqsQueue
from thawd.system import threads
from thawd.system.retry import Backoff, backoff_s, is_set_within

# To hold a message, its visibility timeout is set to this again and again, or to the queue's own if that is longer.
_HOLD_S = 30
# If the queue's timeout is shorter than this, messages are received with this one, so that thawd can extend it in time.
_SHORTEST_HOLD_S = 10
_BACKOFF_FIRST_S, _BACKOFF_LAST_S = 1.0, 60.0
_RECHECK_S = 1.0
# How often the queue's attributes are read.
_LOOK_S = 30.0
_DELETE_TRIES = 6
# Most calls of ReceiveMessage at the same time.
# Source: AWS Lambda developer guide, "Configuring scaling behavior for SQS event source mappings": five at the start.
_MOST_POLLERS = 5
_SOON_S = 0.2
# Larger bodies are decoded in a thread, so that they do not block the event loop.
_LARGE_BODY = 16_384


class Throttled(Exception):
    """Raised by `handle` when the batch cannot be handled now. Its messages are received again later."""


class StaysInQueue(Exception):
    """Raised by `open_` for a message that must not be handled; its text says why.

    The message is received again, until the queue's redrive policy moves it elsewhere.
    """


Handle = Callable[[Sequence[ReceivedMessage]], Awaitable[set[str]]]
"""Handles a batch and returns the ids of the messages that failed. Raises `Throttled` if it cannot run now."""


class Receiver:
    """Receives, holds and deletes messages; `handle` processes them.

    Args:
        queue: the queue.
        open_: makes the content of a message. If it returns None, the message is not wanted and is deleted. Raises
            `StaysInQueue` if the message must not be handled.
        handle: handles a batch.
        batching: how messages are gathered into batches.
        room: returns how many batches may be handled at the same time now.
        progress: the source's figures, which the receiver updates.
        report: takes a line for the operator, and puts the name of the source before it.

    Attributes:
        progress: the source's figures.
        visibility_s: the queue's visibility timeout, as last read, seconds.
        stopping: set once no more messages are received.
    """

    def __init__(  # noqa: PLR0913 - the receiver's collaborators
        self,
        queue: SqsQueue,
        *,
        open_: Callable[[RawMessage], bytes | None],
        handle: Handle,
        batching: Batching,
        room: Callable[[], int],
        progress: SourceProgress,
        report: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._open = open_
        self._handle = handle
        self._batching = batching
        self._room = room
        self.progress = progress
        self._report = report
        self.visibility_s = _HOLD_S
        self._in_progress = 0
        self._pollers = 1
        self._freed = asyncio.Event()
        self.stopping = asyncio.Event()
        self._overflow: list[Batch] = []  # batches of messages that were received with another batch and did not fit
        self._backoff = Backoff(first_s=_BACKOFF_FIRST_S, longest_s=_BACKOFF_LAST_S)  # while the queue cannot be read
        self._throttled = 0  # number of throttled batches in a row

    def stop(self) -> None:
        """Receive no more messages. `run` returns when the running batches have ended."""
        self.stopping.set()

    async def run(self) -> None:
        """Receive until `stop` is called, or until cancelled."""
        async with asyncio.TaskGroup() as batches:
            looking = batches.create_task(self._look_now_and_then())
            gathering: set[asyncio.Task[bool]] = set()
            while not self.stopping.is_set():
                room = self._room() - self._in_progress - len(gathering)
                more = max(0, min(room, self._pollers - len(gathering)))
                gathering |= {batches.create_task(self._gather_one(batches)) for _ in range(more)}
                await self._wait(gathering, most_s=None if room > 0 else _RECHECK_S)
                ended = {task for task in gathering if task.done()}
                gathering -= ended
                if ended:
                    is_full = any(task.result() for task in ended)  # then more messages may wait than one task receives
                    self._pollers = min(_MOST_POLLERS, self._pollers + 1) if is_full else 1
            for task in gathering:
                task.cancel()
            await asyncio.gather(*gathering, return_exceptions=True)
            looking.cancel()
            self._release([])

    async def look(self) -> QueueLook:
        """Read the queue's attributes, and store them in `progress`.

        Raises:
            SourceError: they cannot be read.
        """
        found = await self._queue.look()
        self.visibility_s = found.visibility_s
        self.progress.waiting, self.progress.in_flight = found.visible, found.in_flight
        return found

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(SourceError):  # receiving also fails, and reports it
                await self.look()

    async def _wait(self, gathering: set[asyncio.Task[bool]], *, most_s: float | None) -> None:
        """Wait until a batch is gathered or ends, `stop` is called, or `most_s` seconds have passed."""
        self._freed.clear()
        others = [asyncio.ensure_future(event.wait()) for event in (self._freed, self.stopping)]
        try:
            await asyncio.wait({*gathering, *others}, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in others:
                task.cancel()

    async def _gather_one(self, batches: asyncio.TaskGroup) -> bool:
        """Gather a batch and start handling it. Return whether it is full. If the queue cannot be read, back off."""
        is_full = False
        try:
            if self.progress.waiting is None or self.progress.trouble is not None:
                await self.look()
            is_full = await self._gather(batches)
        except SourceError as error:
            await self._in_trouble(str(error))
        except Exception as error:  # a bug in thawd that one message triggers must not end the source
            await self._in_trouble(f"failed inside thawd: {error!r}")
        if self._throttled:
            await asyncio.sleep(self._throttle_s())
        return is_full

    def _throttle_s(self) -> float:
        return backoff_s(self._throttled, first_s=_BACKOFF_FIRST_S, longest_s=_BACKOFF_LAST_S)

    async def _in_trouble(self, error: str) -> None:
        progress = self.progress
        if error != progress.trouble:
            self._report(f"cannot be read; thawd keeps trying: {error}")
        progress.troubles += 1
        progress.trouble = error
        progress.last_result = f"PROBLEM: {error}"
        await asyncio.sleep(self._backoff.failed(time.monotonic()))

    async def _gather(self, batches: asyncio.TaskGroup) -> bool:
        batch = self._overflow.pop(0) if self._overflow else self._new_batch(batches)
        try:
            await self._fill(batch, batches)
        except BaseException:
            self._release([batch])
            raise
        if batch.messages:
            self._in_progress += 1
            batches.create_task(self._process(batch))
        else:
            batch.over.set()
        return len(batch.messages) >= self._batching.most or bool(self._overflow)

    def _new_batch(self, batches: asyncio.TaskGroup, *, before: Batch | None = None) -> Batch:
        batch = Batch(before)
        batch.holding = batches.create_task(self._hold(batch))
        return batch

    def _release(self, batches: list[Batch]) -> None:
        """Release the messages of `batches` and of `_overflow`, so that other clients receive these messages soon."""
        batches += self._overflow
        self._overflow = []
        for batch in batches:
            batch.over.set()
        self._give_back([message.raw for batch in batches for message in batch.messages])

    def _give_back(self, raw: Sequence[RawMessage]) -> None:
        if raw:
            with contextlib.suppress(NoThreadError):  # messages that are not released are received again later
                threads.start(threading.Thread(target=self._queue.release, args=(raw,), daemon=True))

    async def _fill(self, batch: Batch, batches: asyncio.TaskGroup) -> None:
        """Receive messages until the batch is full or its window is over."""
        batching = self._batching
        end = time.monotonic() + batching.window_s if batch.messages else None
        last = batch
        while len(batch.messages) < batching.most and last is batch:
            left_s = LONGEST_POLL_S if end is None else end - time.monotonic()
            if left_s <= 0:
                return
            wait_s = min(LONGEST_POLL_S, int(left_s))
            most = min(MOST_AT_ONCE, batching.most - len(batch.messages))
            hold_s = max(self.visibility_s, _SHORTEST_HOLD_S)
            raw = await self._queue.receive(
                most=most, wait_s=wait_s, hold_s=None if hold_s == self.visibility_s else hold_s
            )
            held_until = time.monotonic() + hold_s
            self._received(raw)
            unwanted = []
            for raw_message, content in await self._contents(raw):
                if content is None:
                    unwanted.append(str(raw_message["ReceiptHandle"]))
                    continue
                if not last.takes(content, batching):
                    last = self._new_batch(batches, before=last if batching.ordered else None)
                    self._overflow.append(last)
                last.add(ReceivedMessage(raw_message, content, held_until=held_until, hold_s=hold_s))
            if unwanted:
                self.progress.filtered += len(unwanted)
                await self._queue.delete(unwanted)
            if batch.messages and end is None:
                end = time.monotonic() + batching.window_s
            if not raw and not wait_s:
                await asyncio.sleep(min(_SOON_S, left_s))

    async def _contents(self, raw: Sequence[RawMessage]) -> list[tuple[RawMessage, bytes | None]]:
        """Return messages with their contents.

        A message that has no content, or must not be handled, is left out and stays in the queue, for the queue's
        redrive policy.
        """
        found: list[tuple[RawMessage, bytes | None]] = []
        try:
            for message in raw:
                try:
                    if len(message["Body"]) > _LARGE_BODY:
                        content = await asyncio.to_thread(self._open, message)
                    else:
                        content = self._open(message)
                except StaysInQueue as reason:
                    self.progress.failed += 1
                    self.progress.last_result = f"PROBLEM: {reason}"
                    self._report(f"message {message['MessageId']} stays in the queue: {reason}")
                except Exception as error:  # one message must not delay the others
                    self.progress.failed += 1
                    self._report(
                        f"message {message['MessageId']} cannot be decoded, and will be received again: {error!r}"
                    )
                else:
                    found.append((message, content))
        except BaseException:
            self._give_back(raw)
            raise
        return found

    def _received(self, raw: Sequence[RawMessage]) -> None:
        progress = self.progress
        progress.troubles = 0
        self._backoff.succeeded()
        if progress.trouble is not None:
            progress.trouble = None
            progress.last_result = UNPROCESSED
            self._report("can be read again")
        progress.received += len(raw)
        sent = [int(message.get("Attributes", {}).get("SentTimestamp", 0)) for message in raw]
        progress.oldest_s = max((time.time() - at / 1000 for at in sent if at), default=0.0)

    async def _hold(self, batch: Batch) -> None:
        """Until `batch.over` is set, keep other clients from receiving the batch's messages, even those added later."""
        while not batch.over.is_set():
            await is_set_within(batch.over, _RECHECK_S)
            hold_s = max(_HOLD_S, self.visibility_s)
            now = time.monotonic()
            due = [one for one in batch.messages if one.held_until - now < one.hold_s / 2]
            if not due or batch.over.is_set():
                continue
            with contextlib.suppress(SourceError):  # tried again soon; at worst a message is received twice
                refused = set(await self._queue.set_visibility([message.handle for message in due], hold_s))
                for message in (one for one in due if one.handle not in refused):
                    message.held_until, message.hold_s = now + hold_s, hold_s

    async def _process(self, batch: Batch) -> None:
        """Handle a batch, delete the messages that succeeded, and let the others be received again."""
        messages = batch.messages
        try:
            if not await batch.may_begin():
                await batch.let_go()
                self._give_back([message.raw for message in messages])
                return
            failed = await self._handle(messages)
            await self._delete([message for message in messages if message.id not in failed])
            batch.succeeded = not failed
            await batch.let_go()
            self._throttled = 0
            self.progress.failed += len(failed)
            now = time.monotonic()
            # A failed message becomes visible as if it had not been held: when the queue's visibility timeout,
            # counted from the message's reception, is over; immediately if it is over already.
            ends = [(one, one.received_at + self.visibility_s) for one in messages if one.id in failed]
            held = [(one, end) for one, end in ends if one.held_until > end + 1]
            await self._put_back([(one, max(0, math.ceil(end - now))) for one, end in held])
        except Throttled as error:
            await batch.let_go()
            self._throttled += 1
            self.progress.last_result = f"PROBLEM: {error}"
            await self._put_back([(message, math.ceil(self._throttle_s())) for message in messages])
        except SourceError as error:
            self._report(f"handled messages could not be deleted, and will be received again: {error}")
        except Exception as error:  # a bug in thawd that one batch triggers must not end the source
            self._report(f"a batch failed inside thawd, and will be received again: {error!r}")
        finally:
            batch.over.set()
            self._in_progress -= 1
            self._freed.set()

    async def _delete(self, messages: Sequence[ReceivedMessage]) -> None:
        """Delete messages that were handled.

        Raises:
            SourceError: all attempts failed.
        """
        handles = [message.handle for message in messages]
        if not handles:
            return
        for attempt in range(_DELETE_TRIES):
            try:
                handles = await self._queue.delete(handles)
            except SourceError:
                if attempt + 1 == _DELETE_TRIES:
                    raise
            if not handles:
                return
            await asyncio.sleep(backoff_s(attempt + 1, first_s=_SOON_S))
        raise SourceError(f"{len(handles)} receipt handles were refused")

    async def _put_back(self, waits: Sequence[tuple[ReceivedMessage, int]]) -> None:
        for wait_s in {wait_s for _, wait_s in waits}:
            handles = [message.handle for message, wanted_s in waits if wanted_s == wait_s]
            with contextlib.suppress(SourceError):  # their present visibility timeout also ends, only later
                await self._queue.set_visibility(handles, wait_s)
