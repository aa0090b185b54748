"""Takes batches of messages from an SQS queue to whoever handles them; a message is deleted once it was handled.

Guarantee: at least once. A message is deleted only after `handle` returned without naming it, and is kept from others
until then, however long that takes. One that failed comes again when the queue's visibility timeout, counted from its
reception, is over; how often, and where it ends then, is the queue's redrive policy. A crash is such a failure.

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

from thawd.control.mapping_records import UNPROCESSED
from thawd.errors import NoThreadError
from thawd.sources.sqs.batch import Batch, Batching, Letter, SourceProgress
from thawd.sources.sqs.client import LONGEST_POLL_S, MOST_AT_ONCE, QueueLook, RawMessage, SourceError, SqsQueue
from thawd.system import threads

# What a batch's messages are kept from others for, each time; at least the queue's own visibility timeout.
_HOLD_S = 30
# A shorter timeout might be over before the first extension, so that messages are received with this one then.
_SHORTEST_HOLD_S = 10
_BACKOFF_FIRST_S, _BACKOFF_LAST_S = 1.0, 60.0
_RECHECK_S = 1.0
_LOOK_S = 30.0
_DELETE_TRIES = 6
# Source: AWS Lambda developer guide, "Configuring scaling behavior for SQS event source mappings": begins with five.
_MOST_POLLERS = 5
_SOON_S = 0.2
# To look into a larger body may take long, and others wait for the event loop.
_LARGE_BODY = 16_384


class Throttled(Exception):
    """What `handle` raises when nothing was done for want of room: the messages go back, and come again later."""


Handle = Callable[[Sequence[Letter]], Awaitable[set[str]]]
"""Deals with a batch; the ids of the messages that failed. Raises `Throttled` when nothing was done."""


class Receiver:
    """Receives, for whoever has use for messages: it knows nothing of functions.

    Args:
        queue: where from.
        open_: the content of a message; None: it is not wanted, and deleted.
        handle: deals with a batch.
        batching: how batches are made.
        room: how many batches may be under way at once, as things are now.
        progress: told how it goes.
        report: told in one line what an operator should know.

    Attributes:
        progress: what has come of it.
        visibility_s: the queue's visibility timeout, as of the last look, seconds.
        stopping: set once it receives no more.
    """

    def __init__(  # noqa: PLR0913 - the parts that it is put together from
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
        self._under_way = 0
        self._pollers = 1
        self._freed = asyncio.Event()
        self.stopping = asyncio.Event()
        self._behind: list[Batch] = []  # received with a batch that had no room for them
        self._throttle_s = 0.0

    def stop(self) -> None:
        """Receive no more; batches under way go on, and `run` returns when they have ended."""
        self.stopping.set()

    async def run(self) -> None:
        """Receive until `stop` is called, or until cancelled."""
        async with asyncio.TaskGroup() as batches:
            looking = batches.create_task(self._look_now_and_then())
            gathering: set[asyncio.Task[bool]] = set()
            while not self.stopping.is_set():
                room = self._room() - self._under_way - len(gathering)
                more = max(0, min(room, self._pollers - len(gathering)))
                gathering |= {batches.create_task(self._gather_one(batches)) for _ in range(more)}
                await self._wait(gathering, most_s=None if room > 0 else _RECHECK_S)
                ended = {task for task in gathering if task.done()}
                gathering -= ended
                if ended:
                    is_full = any(task.result() for task in ended)  # then there may be more than one can take
                    self._pollers = min(_MOST_POLLERS, self._pollers + 1) if is_full else 1
            for task in gathering:
                task.cancel()
            await asyncio.gather(*gathering, return_exceptions=True)
            looking.cancel()
            self._give_up([])

    async def look(self) -> QueueLook:
        """How the queue is now; noted in `progress`.

        Raises:
            SourceError: it cannot be asked.
        """
        found = await self._queue.look()
        self.visibility_s = found.visibility_s
        self.progress.waiting, self.progress.in_flight = found.visible, found.in_flight
        return found

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(SourceError):  # receiving tells of it
                await self.look()

    async def _wait(self, gathering: set[asyncio.Task[bool]], *, most_s: float | None) -> None:
        """Wait until a batch was gathered or has ended, or for a stop, or for `most_s` seconds."""
        self._freed.clear()
        others = [asyncio.ensure_future(event.wait()) for event in (self._freed, self.stopping)]
        try:
            await asyncio.wait({*gathering, *others}, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in others:
                task.cancel()

    async def _gather_one(self, batches: asyncio.TaskGroup) -> bool:
        """Gather one batch and have it dealt with; or wait, when the queue is in trouble. Whether it was full."""
        is_full = False
        try:
            if self.progress.waiting is None or self.progress.trouble is not None:
                await self.look()
            is_full = await self._gather(batches)
        except SourceError as error:
            await self._in_trouble(str(error))
        except Exception as error:  # a bug of ours with one message must not end the source
            await self._in_trouble(f"failed inside thawd: {error!r}")
        if self._throttle_s:
            await asyncio.sleep(self._throttle_s)
        return is_full

    async def _in_trouble(self, error: str) -> None:
        progress = self.progress
        if error != progress.trouble:
            self._report(f"cannot be read, and is tried again until it can: {error}")
        progress.troubles += 1
        progress.trouble = error
        progress.last_result = f"PROBLEM: {error}"
        wait_s = _BACKOFF_FIRST_S * 2 ** min(progress.troubles - 1, 16)
        await asyncio.sleep(min(_BACKOFF_LAST_S, wait_s))

    async def _gather(self, batches: asyncio.TaskGroup) -> bool:
        batch = self._behind.pop(0) if self._behind else self._new_batch(batches)
        try:
            await self._fill(batch, batches)
        except BaseException:
            self._give_up([batch])
            raise
        if batch.letters:
            self._under_way += 1
            batches.create_task(self._deal(batch))
        else:
            batch.over.set()
        return len(batch.letters) >= self._batching.most or bool(self._behind)

    def _new_batch(self, batches: asyncio.TaskGroup, *, before: Batch | None = None) -> Batch:
        batch = Batch(before)
        batch.holding = batches.create_task(self._hold(batch))
        return batch

    def _give_up(self, given_up: list[Batch]) -> None:
        """Cancelled, or in trouble: better soon handled by another than by us later."""
        given_up += self._behind
        self._behind = []
        for batch in given_up:
            batch.over.set()
        self._give_back([letter.raw for batch in given_up for letter in batch.letters])

    def _give_back(self, messages: Sequence[RawMessage]) -> None:
        if messages:
            with contextlib.suppress(NoThreadError):  # what is not given back comes again after its time
                threads.start(threading.Thread(target=self._queue.release, args=(messages,), daemon=True))

    async def _fill(self, batch: Batch, batches: asyncio.TaskGroup) -> None:
        """Receive until the batch is full, or its window over."""
        batching = self._batching
        end = time.monotonic() + batching.window_s if batch.letters else None
        last = batch
        while len(batch.letters) < batching.most and last is batch:
            left_s = LONGEST_POLL_S if end is None else end - time.monotonic()
            if left_s <= 0:
                return
            wait_s = min(LONGEST_POLL_S, int(left_s))
            most = min(MOST_AT_ONCE, batching.most - len(batch.letters))
            hold_s = max(self.visibility_s, _SHORTEST_HOLD_S)
            messages = await self._queue.receive(
                most=most, wait_s=wait_s, hold_s=None if hold_s == self.visibility_s else hold_s
            )
            held_until = time.monotonic() + hold_s
            self._received(messages)
            unwanted = []
            for message, content in await self._contents(messages):
                if content is None:
                    unwanted.append(str(message["ReceiptHandle"]))
                    continue
                if not last.takes(content, batching):
                    last = self._new_batch(batches, before=last if batching.ordered else None)
                    self._behind.append(last)
                last.add(Letter(message, content, held_until=held_until, hold_s=hold_s))
            if unwanted:
                self.progress.filtered += len(unwanted)
                await self._queue.delete(unwanted)
            if batch.letters and end is None:
                end = time.monotonic() + batching.window_s
            if not messages and not wait_s:
                await asyncio.sleep(min(_SOON_S, left_s))

    async def _contents(self, messages: Sequence[RawMessage]) -> list[tuple[RawMessage, bytes | None]]:
        """Messages with what is made of them; one that nothing can be made of is left to the queue's redrive policy."""
        found: list[tuple[RawMessage, bytes | None]] = []
        try:
            for message in messages:
                try:
                    if len(message["Body"]) > _LARGE_BODY:
                        content = await asyncio.to_thread(self._open, message)
                    else:
                        content = self._open(message)
                except Exception as error:  # it must not hold up those beside it
                    self.progress.failed += 1
                    self._report(f"message {message['MessageId']} cannot be dealt with, and comes again: {error!r}")
                else:
                    found.append((message, content))
        except BaseException:
            self._give_back(messages)
            raise
        return found

    def _received(self, messages: Sequence[RawMessage]) -> None:
        progress = self.progress
        progress.troubles = 0
        if progress.trouble is not None:
            progress.trouble = None
            progress.last_result = UNPROCESSED
            self._report("can be read again")
        progress.received += len(messages)
        sent = [int(message.get("Attributes", {}).get("SentTimestamp", 0)) for message in messages]
        progress.oldest_s = max((time.time() - at / 1000 for at in sent if at), default=0.0)

    async def _hold(self, batch: Batch) -> None:
        """Keep the messages of a batch from others until it is over, those included that come to it later."""
        while not batch.over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RECHECK_S):
                    await batch.over.wait()
            hold_s = max(_HOLD_S, self.visibility_s)
            now = time.monotonic()
            due = [one for one in batch.letters if one.held_until - now < one.hold_s / 2]
            if not due or batch.over.is_set():
                continue
            with contextlib.suppress(SourceError):  # tried again at once; at worst a message comes twice
                refused = set(await self._queue.set_visibility([letter.handle for letter in due], hold_s))
                for letter in (one for one in due if one.handle not in refused):
                    letter.held_until, letter.hold_s = now + hold_s, hold_s

    async def _deal(self, batch: Batch) -> None:
        """Have a batch handled, delete what was, let go of what was not."""
        letters = batch.letters
        try:
            if not await batch.may_begin():
                await batch.let_go()
                self._give_back([letter.raw for letter in letters])
                return
            failed = await self._handle(letters)
            await self._delete([letter for letter in letters if letter.id not in failed])
            batch.succeeded = not failed
            await batch.let_go()
            self._throttle_s = 0.0
            self.progress.failed += len(failed)
            now = time.monotonic()
            # As if nobody had held it: it comes again when the visibility timeout is over, or at once if it was.
            ends = [(one, one.received_at + self.visibility_s) for one in letters if one.id in failed]
            held = [(one, end) for one, end in ends if one.held_until > end + 1]
            await self._put_back([(one, max(0, math.ceil(end - now))) for one, end in held])
        except Throttled as error:
            await batch.let_go()
            self._throttle_s = min(_BACKOFF_LAST_S, max(_BACKOFF_FIRST_S, 2 * self._throttle_s))
            self.progress.last_result = f"PROBLEM: {error}"
            await self._put_back([(letter, math.ceil(self._throttle_s)) for letter in letters])
        except SourceError as error:
            self._report(f"messages come again though they were handled, as they could not be deleted: {error}")
        except Exception as error:  # a bug of ours with one batch must not end the source
            self._report(f"a batch failed inside thawd, and comes again: {error!r}")
        finally:
            batch.over.set()
            self._under_way -= 1
            self._freed.set()

    async def _delete(self, letters: Sequence[Letter]) -> None:
        """Delete messages that were handled.

        Raises:
            SourceError: that failed again and again.
        """
        handles = [letter.handle for letter in letters]
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
            await asyncio.sleep(_SOON_S * 2**attempt)
        raise SourceError(f"{len(handles)} receipt handles were refused")

    async def _put_back(self, waits: Sequence[tuple[Letter, int]]) -> None:
        for wait_s in {wait_s for _, wait_s in waits}:
            handles = [letter.handle for letter, wanted_s in waits if wanted_s == wait_s]
            with contextlib.suppress(SourceError):  # they come again by themselves, later
                await self._queue.set_visibility(handles, wait_s)
