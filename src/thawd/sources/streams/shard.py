"""Reads one shard of a stream, passes its records on in batches, and stores how far it has come.

Guarantee: every record that a filter lets pass is handled at least once, and records with the same key are handled in
the shard's order. The stored position advances only over records that are done, and when a server starts, reading goes
on after that position. So a crash repeats the records of running batches, and loses none.

With a parallelisation factor, records are divided among lanes by their key; each lane runs one batch at a time.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from thawd.errors import StoreError
from thawd.invocation import MAX_PAYLOAD_BYTES
from thawd.sources.aws_calls import SourceError
from thawd.sources.streams.batch import BatchRun, ShardContext, Stopped
from thawd.sources.streams.client import (
    RETENTION_S,
    IteratorExpired,
    Page,
    RawRecord,
    RecordsTrimmed,
    Shard,
    Start,
    StreamClient,
)
from thawd.sources.streams.lambda_event import StreamRecord
from thawd.sources.streams.windows import Window
from thawd.stores.stream_positions import Position
from thawd.system.retry import Backoff, is_set_within

# Pauses between reads of a shard: short after records, longer while nothing comes.
# Source: AWS Lambda developer guide: a shard of Kinesis is polled once a second, one of DynamoDB four times a second.
_SOON_S, _IDLE_S = 0.1, 1.0
_BACKOFF_FIRST_S, _BACKOFF_LAST_S = 1.0, 60.0
_STORE_RETRY_S = 2.0
# Size of an event without its records.
_ENVELOPE_BYTES = 14
# A lane that is full holds up reading; it may hold this many batches.
_BATCHES_AHEAD = 2
# Most bytes of records that wait in all lanes of a shard.
_MOST_BYTES = 4 * MAX_PAYLOAD_BYTES
# Pages without records after which a shard counts as read to its end, if the service does not say it.
_EMPTY_PAGES = 3
# Records are asked for in pages of at least this number.
_LEAST_PAGE = 100


class _Lane:
    """Records that wait, in order, for the batch of one lane."""

    def __init__(self) -> None:
        self.waiting: deque[StreamRecord] = deque()
        self.changed = asyncio.Event()


class ShardReader:
    """Reads one shard until it is closed and done, or until the source is stopped.

    Args:
        shard: the shard.
        client: reads the stream.
        context: what the batches of the shard share.
        position: how far the shard has been processed.
        first: where reading begins if no record has been processed, unless the server has been restarted since.
        make: makes a record, with its content, of what the service returned.
        save: stores a position.
        trouble: called with the reason while the shard cannot be read, and with None when it can be read again.

    Attributes:
        shard: the shard as it was listed last.
    """

    def __init__(  # noqa: PLR0913 - the reader's collaborators
        self,
        shard: Shard,
        client: StreamClient,
        context: ShardContext,
        *,
        position: Position,
        first: Start,
        make: Callable[[RawRecord], StreamRecord],
        save: Callable[[Position], Awaitable[None]],
        trouble: Callable[[str | None], None],
    ) -> None:
        self.shard = shard
        self._client = client
        self._context = context
        self._first = first
        self._make = make
        self._save = save
        self._trouble = trouble
        self._stopping = context.stopping
        mapping = context.mapping
        self._most = mapping.batch_size
        self._page = max(self._most, _LEAST_PAGE)
        self._window_s = mapping.window_s
        self._lanes = [_Lane() for _ in range(mapping.parallelization_factor)]
        self._position = self._stored = position
        self._reached = position.sequence  # sequence number of the last record that was read
        self._pending: deque[StreamRecord] = deque()  # records that are read and not stored as done, in order
        self._done: set[str] = set()  # sequence numbers of those among them that are done
        self._waiting_bytes = 0
        self._freed = asyncio.Event()
        self._storing = asyncio.Lock()
        self._window: Window | None = None
        if mapping.tumbling_s:
            self._window = Window(
                mapping.tumbling_s, shard=shard.id, arn=mapping.source, start=position.window, state=position.state
            )
        self._caught_up_at = 0.0  # the last time when the shard had no more records, seconds since the epoch
        self._empty_pages = 0
        self._ended = False  # whether all records of the closed shard have been read

    async def run(self) -> None:
        """Return when the source is stopped, or when all records of the closed shard are done.

        Batches that run are completed, and their progress is stored.
        """
        async with asyncio.TaskGroup() as lanes:
            for lane in self._lanes:
                lanes.create_task(self._run_lane(lane))
            await self._read()
            for lane in self._lanes:
                lane.changed.set()
        if self._ended and not self._pending:
            self._position = msgspec.structs.replace(self._position, ended=True)
            await self._store()

    async def _read(self) -> None:
        """Read records into the lanes until the shard has ended or the source is stopped."""
        backoff = Backoff(first_s=_BACKOFF_FIRST_S, longest_s=_BACKOFF_LAST_S)
        iterator: str | None = None
        pause_s = _SOON_S
        while not self._stopping.is_set():
            try:
                if iterator is None:
                    iterator = await self._begin()
                asked_at = time.time()
                page = await self._client.records(iterator, most=self._page)
                self._trouble(None)
                backoff.succeeded()
            except IteratorExpired:
                iterator = None
                continue
            except RecordsTrimmed:
                self._lost()
                iterator = None
                continue
            except SourceError as error:
                self._trouble(str(error))
                iterator = None
                await is_set_within(self._stopping, backoff.failed(time.monotonic()))
                continue
            await self._take(page.records)
            self._note_end(page, asked_at)
            if self._is_last(page):
                self._ended = True
                return
            iterator = page.next
            pause_s = _SOON_S if page.records else min(_IDLE_S, 2 * pause_s)
            # There are more records if the page was full.
            if len(page.records) < self._page:
                await is_set_within(self._stopping, pause_s)

    def _note_end(self, page: Page, asked_at: float) -> None:
        """Note that there were no more records when a page was asked for, which ends windows that were over then."""
        self._empty_pages = 0 if page.records else self._empty_pages + 1
        if self._window is not None and not page.records and (page.is_at_end or self._empty_pages >= _EMPTY_PAGES):
            self._caught_up_at = asked_at
            self._lanes[0].changed.set()

    def _is_last(self, page: Page) -> bool:
        if page.next is None:
            return True
        last = self.shard.last
        if last is None:
            return False
        return bool(self._reached and int(self._reached) >= int(last)) or (not page.records and page.is_at_end)

    def _lost(self) -> None:
        """Go on at the oldest record, because the stream has dropped those that should have come next."""
        self._context.report(
            f"{self.shard.id}: the stream no longer has the record {self._reached or 'to begin with'}, so records "
            "after it may be missing; thawd continues with the oldest record that it has"
        )
        self._reached = ""
        self._position = Position(window=self._position.window, state=self._position.state)

    async def _begin(self) -> str:
        """Return an iterator for the records after those that have been read.

        Raises:
            SourceError: the service cannot be asked.
            RecordsTrimmed: the stream no longer has these records.
        """
        client, shard = self._client, self.shard.id
        if self._reached:
            if self._reached == self._position.sequence and not await self._is_same():
                self._context.report(
                    f"{shard}: the stream was made again or reset, because it has another record "
                    f"{self._position.sequence}; it is read from the start"
                )
                self._position, self._reached = Position(), ""
                if self._window is not None:
                    self._window.close()
                return await client.iterator(shard, Start("TRIM_HORIZON"))
            return await client.iterator(shard, Start("AFTER_SEQUENCE_NUMBER", sequence=self._reached))
        if self._position.since is None:
            return await client.iterator(shard, Start("TRIM_HORIZON"))
        first, self._first = self._first, Start("AT_TIMESTAMP", timestamp=self._position.since)
        if first.kind == "AT_TIMESTAMP" and client.name.service == "dynamodb":
            first = Start("TRIM_HORIZON")  # `_take` leaves out what is older
        return await client.iterator(shard, first)

    async def _is_same(self) -> bool:
        """Return whether the stream still has the last processed record, or may have dropped it because of its age."""
        position = self._position
        if position.arrived_at < time.time() - RETENTION_S[self._client.name.service]:
            return True
        try:
            iterator: str | None = await self._client.iterator(
                self.shard.id, Start("AT_SEQUENCE_NUMBER", sequence=position.sequence)
            )
            for _ in range(_EMPTY_PAGES):
                if iterator is None:
                    break
                page = await self._client.records(iterator, most=1)
                if page.records:
                    found = self._make(page.records[0])
                    return (found.sequence, found.identity) == (position.sequence, position.identity)
                if page.is_at_end:
                    break
                iterator = page.next
        except (RecordsTrimmed, IteratorExpired):
            pass
        return False

    async def _take(self, raw: Sequence[RawRecord]) -> None:
        """Put records into the lanes, and wait while these are full."""
        progress = self._context.progress
        since = self._position.since if not self._position.sequence else None
        progress.received += len(raw)
        for one in raw:
            record = self._make(one)
            self._reached = record.sequence
            progress.oldest_s = max(0.0, time.time() - record.arrived_at)
            self._pending.append(record)
            # DynamoDB tells the time of a record in whole seconds.
            if since is not None and record.arrived_at < int(since):
                self._done.add(record.sequence)
                continue
            if not record.wanted:
                progress.filtered += 1
                self._done.add(record.sequence)
                continue
            lane = self._lanes[zlib.crc32(record.key.encode()) % len(self._lanes)]
            lane.waiting.append(record)
            self._waiting_bytes += len(record.content)
            lane.changed.set()
            while self._is_full(lane) and not self._stopping.is_set():
                self._freed.clear()
                await is_set_within(self._freed, _IDLE_S)
            if self._stopping.is_set():
                return
        if not raw:
            progress.oldest_s = 0.0
        elif self._pending and self._pending[0].sequence in self._done:
            await self._advance(())

    def _is_full(self, lane: _Lane) -> bool:
        return len(lane.waiting) >= _BATCHES_AHEAD * self._most or self._waiting_bytes > _MOST_BYTES

    async def _run_lane(self, lane: _Lane) -> None:
        while True:
            records = await self._gather(lane)
            is_closing = not records and self._is_over(lane)
            if not records and not is_closing:
                return
            self._freed.set()
            window = self._window
            if window is not None and records:
                window.open_for(records[0])
            try:
                await BatchRun(self._context, records, self._advance, window=window).run()
            except Stopped:
                return
            if window is not None and is_closing:
                window.close()
                await self._advance(())

    def _is_over(self, lane: _Lane) -> bool:
        """Return whether the window that is open has had its last record, so that its last invocation is due."""
        window = self._window
        if window is None or window.end is None or self._stopping.is_set():
            return False
        if window.is_too_large:
            return True
        if lane.waiting:
            return not window.includes(lane.waiting[0])
        return self._ended or self._caught_up_at >= window.end

    async def _gather(self, lane: _Lane) -> list[StreamRecord]:
        """Take the next batch from a lane, at the latest when the window is over. Empty: there is no more."""
        end: float | None = None
        while not self._stopping.is_set() and not self._is_over(lane):
            if lane.waiting and end is None:
                end = time.monotonic() + self._window_s
            now = time.monotonic()
            is_over = end is not None and (now >= end or self._ended)
            if lane.waiting and (is_over or len(lane.waiting) >= self._most):
                return self._batch(lane)
            if self._ended and not lane.waiting:
                return []
            lane.changed.clear()
            waiting = [asyncio.ensure_future(one.wait()) for one in (lane.changed, self._stopping)]
            try:
                timeout = None if end is None else end - now
                await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
        return []

    def _batch(self, lane: _Lane) -> list[StreamRecord]:
        records: list[StreamRecord] = []
        size = _ENVELOPE_BYTES
        window = self._window
        if window is not None:
            window.open_for(lane.waiting[0])
            size += window.size_bytes
        while lane.waiting and len(records) < self._most:
            if window is not None and not window.includes(lane.waiting[0]):
                break
            size += len(lane.waiting[0].content) + 1
            if records and size > MAX_PAYLOAD_BYTES:
                break
            records.append(lane.waiting.popleft())
            self._waiting_bytes -= len(records[-1].content)
        return records

    async def _advance(self, records: Sequence[StreamRecord]) -> None:
        """Count records as done, and store the position if it advances."""
        self._done.update(record.sequence for record in records)
        last: StreamRecord | None = None
        while self._pending and self._pending[0].sequence in self._done:
            last = self._pending.popleft()
            self._done.discard(last.sequence)
        if last is not None:
            self._position = Position(last.sequence, last.identity, last.arrived_at)
        if self._window is not None:
            window = self._window
            self._position = msgspec.structs.replace(self._position, window=window.start, state=window.state)
        if last is not None or self._window is not None:
            await self._store()

    async def _store(self) -> None:
        """Store the position; wait while the disk does not take it. The last position that is stored is the newest."""
        async with self._storing:
            while self._stored != self._position:
                position = self._position
                try:
                    await self._save(position)
                    self._stored = position
                except StoreError as error:
                    self._context.progress.last_result = f"PROBLEM: {error.message}"
                    if self._stopping.is_set():
                        return  # the records will be passed on again
                    await is_set_within(self._stopping, _STORE_RETRY_S)
