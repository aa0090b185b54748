"""Reads one Kinesis or DynamoDB stream for one function: the poller of an event source mapping.

A shard is read once the shards that it continues are done, as their records come first.

Source: AWS Lambda developer guide, "Using Lambda with Kinesis" and "… with DynamoDB"; Kinesis Data Streams developer
guide, "Resharding a stream".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from thawd.control.event_source_mapping_records import UNPROCESSED, SourceMapping
from thawd.destinations.delivery import Destinations
from thawd.errors import StoreError
from thawd.grammar import stream_names
from thawd.grammar.event_patterns import Pattern
from thawd.scheduling.dispatcher import Dispatcher
from thawd.sources.aws_calls import Endpoint, SourceError
from thawd.sources.progress import SourceProgress
from thawd.sources.streams.batch import ShardContext
from thawd.sources.streams.client import RawRecord, Shard, Start, StreamClient
from thawd.sources.streams.lambda_event import StreamRecord, stream_record
from thawd.sources.streams.shard import ShardReader
from thawd.stores.stream_positions import Position, StreamPositions
from thawd.system.retry import Backoff, is_set_within

# Seconds between two listings of a stream's shards. They are also listed as soon as a shard has ended.
_LIST_S = 30.0
_BACKOFF_FIRST_S, _BACKOFF_LAST_S = 1.0, 60.0
_AFTER_BUG_S = 5.0


async def stream_problem(mapping: SourceMapping, *, endpoint: Endpoint | None) -> str | None:
    """Return AWS's words if the mapping's stream does not exist; None: it exists, or this is not known."""
    name = stream_names.parse(mapping.source)
    assert name is not None, "thawd.control has checked it"
    if await StreamClient(name, endpoint=endpoint).exists():
        return None
    return f"Stream not found: {mapping.source}"


class StreamPoller:
    """Reads one stream for one function.

    Args:
        mapping: the event source mapping.
        dispatcher: runs the function.
        endpoint: an emulator of AWS; None: as configured by AWS's environment variables and files.
        progress: the source's figures so far, which the poller continues.
        report: takes a line for the operator.
        positions: stores how far the stream has been processed.
        destinations: take records of discarded batches.
        role: returns the ARN of a function's role.
    """

    def __init__(  # noqa: PLR0913 - the poller's collaborators
        self,
        mapping: SourceMapping,
        dispatcher: Dispatcher,
        *,
        endpoint: Endpoint | None,
        progress: SourceProgress,
        report: Callable[[str], None],
        positions: StreamPositions,
        destinations: Destinations,
        role: Callable[[str], str],
    ) -> None:
        name = stream_names.parse(mapping.source)
        assert name is not None, "thawd.control has checked it"
        self._mapping = mapping
        self._name = name
        self._dispatcher = dispatcher
        self._client = StreamClient(name, endpoint=endpoint)
        self._progress = progress
        self._report = report
        self._store = positions
        self._destinations = destinations
        self._role = role
        self._patterns = [Pattern(text) for text in mapping.patterns]
        self._positions: dict[str, Position] = {}
        self._first: dict[str, Start] = {}  # for shards that have not been read yet: where reading begins
        self._readers: dict[str, ShardReader] = {}
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Read no more. Running batches are completed, and their progress is stored."""
        self._stopping.set()
        self._changed.set()

    async def look(self) -> None:
        """Do nothing: neither service tells how many records wait."""

    async def run(self) -> None:
        """Read the stream until `stop` is called and the running batches have ended."""
        backoff = Backoff(first_s=_BACKOFF_FIRST_S, longest_s=_BACKOFF_LAST_S)
        is_loaded = False
        async with asyncio.TaskGroup() as readers:
            while not self._stopping.is_set():
                self._changed.clear()
                wait_s = _LIST_S
                try:
                    if not is_loaded:
                        self._positions = await self._store.load(self._mapping.uuid)
                        is_loaded = True
                    await self._start_readers(await self._client.shards(), readers)
                    self._trouble(None)
                    backoff.succeeded()
                except SourceError as error:
                    self._trouble(str(error))
                    wait_s = backoff.failed(time.monotonic())
                except StoreError as error:
                    self._trouble(error.message)
                    wait_s = backoff.failed(time.monotonic())
                await is_set_within(self._changed, wait_s)

    async def _start_readers(self, shards: list[Shard], readers: asyncio.TaskGroup) -> None:
        """Start a reader for each shard that can be read and has none.

        Raises:
            StoreError: the positions of new shards could not be stored.
        """
        found = {shard.id: shard for shard in shards}
        new = {one: self._new_position(found[one]) for one in found.keys() - self._positions.keys()}
        gone = [one for one, position in self._positions.items() if one not in found and position.ended]
        if new or gone:
            await self._store.save(self._mapping.uuid, new.items(), remove=gone)
            self._positions |= new
            for one in gone:
                del self._positions[one]
        for shard in shards:
            open_parents = [one for one in shard.parents if one in found and not self._positions[one].ended]
            if shard.id in self._readers:
                self._readers[shard.id].shard = shard  # it may have been closed
            elif not open_parents and not self._positions[shard.id].ended:
                self._readers[shard.id] = self._reader(shard)
                readers.create_task(self._read(self._readers[shard.id]))

    def _new_position(self, shard: Shard) -> Position:
        """Where reading of a shard begins that was not there before.

        When a mapping reads its stream for the first time, its starting position decides. Shards that appear later are
        read from their start: all their records are newer.
        """
        if self._positions or self._mapping.starting_position == "TRIM_HORIZON":
            return Position()
        if self._mapping.starting_position == "AT_TIMESTAMP":
            return Position(since=self._mapping.starting_timestamp)
        self._first[shard.id] = Start("LATEST")
        return Position(since=time.time(), ended=shard.last is not None)

    async def _read(self, reader: ShardReader) -> None:
        shard = reader.shard.id
        try:
            await reader.run()
        except Exception as error:  # a bug in thawd that one record triggers must not end the source
            self._trouble(f"{shard}: failed inside thawd: {error!r}")
            await is_set_within(self._stopping, _AFTER_BUG_S)
        finally:
            del self._readers[shard]
            self._changed.set()

    def _reader(self, shard: Shard) -> ShardReader:
        mapping, name = self._mapping, self._name
        context = ShardContext(
            mapping,
            name.service,
            shard.id,
            self._dispatcher,
            self._destinations,
            self._progress,
            lambda text: self._report(f"thawd: source {mapping.name}: {text}"),
            self._stopping,
        )

        def make(raw: RawRecord) -> StreamRecord:
            return stream_record(
                raw,
                service=name.service,
                shard=shard.id,
                arn=mapping.source,
                region=name.region,
                role=self._role(mapping.function),
                patterns=self._patterns,
            )

        async def save(position: Position) -> None:
            await self._store.save(mapping.uuid, [(shard.id, position)])
            self._positions[shard.id] = position

        position = self._positions[shard.id]
        return ShardReader(
            shard,
            self._client,
            context,
            position=position,
            first=self._first.pop(shard.id, Start("AT_TIMESTAMP", timestamp=position.since or 0.0)),
            make=make,
            save=save,
            trouble=self._trouble,
        )

    def _trouble(self, error: str | None) -> None:
        """Record why the stream cannot be read, None: it can be read. A change is reported."""
        progress = self._progress
        if error is not None:
            progress.troubles += 1
            progress.last_result = f"PROBLEM: {error}"
        if error == progress.trouble:
            return
        if error is None:
            progress.last_result, progress.troubles = UNPROCESSED, 0
            self._report(f"thawd: source {self._mapping.name}: can be read again")
        else:
            self._report(f"thawd: source {self._mapping.name}: cannot be read; thawd keeps trying: {error}")
        progress.trouble = error
