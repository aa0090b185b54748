"""Calls one Kinesis or DynamoDB stream with boto3, and gives both the same form.

Source: Amazon Kinesis Data Streams API reference and Amazon DynamoDB Streams API reference, the operations that the
docstrings name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from thawd.grammar.stream_names import StreamName
from thawd.sources.aws_calls import Endpoint, SourceError, explained, in_thread, make_client

T = TypeVar("T")
RawRecord = Mapping[str, Any]
MOST_AT_ONCE = {"kinesis": 10_000, "dynamodb": 1_000}
"""Most records in one answer of GetRecords."""
RETENTION_S = {"kinesis": 86_400.0, "dynamodb": 86_400.0}
"""The shortest time for which a service keeps a record, seconds."""
_SERVICES = {"kinesis": "kinesis", "dynamodb": "dynamodbstreams"}
_ANSWER_S = 30
_CONNECTIONS = 50
_EXPIRED = {"ExpiredIteratorException"}
_TRIMMED = {"TrimmedDataAccessException", "InvalidArgumentException"}
_GONE = {"ResourceNotFoundException"}


class IteratorExpired(Exception):
    """The shard iterator is too old; a new one must be fetched."""


class RecordsTrimmed(Exception):
    """The stream no longer has records at the wanted position."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of a stream.

    Attributes:
        id: the shard's id.
        parents: ids of the shards that it continues.
        last: sequence number of its last record if the shard is closed and the service names it; None: it is open.
    """

    id: str
    parents: tuple[str, ...] = ()
    last: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins in a shard.

    Attributes:
        kind: a shard iterator type: ``TRIM_HORIZON``, ``LATEST``, ``AT_TIMESTAMP``, ``AT_SEQUENCE_NUMBER`` or
            ``AFTER_SEQUENCE_NUMBER``.
        sequence: sequence number, for the last two.
        timestamp: seconds since the epoch, for ``AT_TIMESTAMP``.
    """

    kind: str
    sequence: str = ""
    timestamp: float = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of GetRecords.

    Attributes:
        records: the records as boto3 returns them, in the shard's order.
        next: iterator for the following records; None: the shard is closed, and these were its last records.
        is_at_end: whether the service says that there are no more records now; False if it does not say.
    """

    records: Sequence[RawRecord]
    next: str | None
    is_at_end: bool


class StreamClient:
    """One stream.

    Args:
        name: the stream.
        endpoint: an emulator of AWS; None: as configured by AWS's environment variables and files.
    """

    def __init__(self, name: StreamName, *, endpoint: Endpoint | None = None) -> None:
        self.name = name
        self._endpoint = endpoint
        self._client: Any = None
        self._lock = threading.Lock()

    async def shards(self) -> list[Shard]:
        """List the shards that the stream still has, with ListShards or DescribeStream.

        Raises:
            SourceError: the call failed.
        """
        return await self._call(self._shards_of_kinesis if self.name.service == "kinesis" else self._shards_of_dynamodb)

    async def iterator(self, shard: str, start: Start) -> str:
        """Return an iterator, with GetShardIterator.

        Raises:
            SourceError: the call failed.
            RecordsTrimmed: the stream no longer has the sequence number of `start`.
        """
        given: dict[str, Any] = {"ShardId": shard, "ShardIteratorType": start.kind}
        if start.kind.endswith("_SEQUENCE_NUMBER"):
            name = "StartingSequenceNumber" if self.name.service == "kinesis" else "SequenceNumber"
            given[name] = start.sequence
        if start.kind == "AT_TIMESTAMP":
            given["Timestamp"] = datetime.fromtimestamp(start.timestamp, UTC)

        def work() -> str:
            return str(self._ready().get_shard_iterator(**self._stream(), **given)["ShardIterator"])

        try:
            return await self._call(work)
        except SourceError as error:
            if error.code in _TRIMMED and start.sequence:
                raise RecordsTrimmed from error
            raise

    async def records(self, iterator: str, *, most: int) -> Page:
        """Read the next records, with GetRecords.

        Args:
            iterator: where to read.
            most: most records.

        Raises:
            SourceError: the call failed.
            IteratorExpired: the iterator is too old.
            RecordsTrimmed: the stream no longer has the records at the iterator.
        """
        most = min(most, MOST_AT_ONCE[self.name.service])

        def work() -> Page:
            named = self._stream() if self.name.service == "kinesis" else {}
            answer = self._ready().get_records(ShardIterator=iterator, Limit=most, **named)
            following = answer.get("NextShardIterator")
            is_at_end = answer.get("MillisBehindLatest") == 0
            return Page(answer["Records"], following, is_at_end)

        try:
            return await self._call(work)
        except SourceError as error:
            if error.code in _EXPIRED:
                raise IteratorExpired from error
            if error.code == "TrimmedDataAccessException":
                raise RecordsTrimmed from error
            raise

    async def exists(self) -> bool:
        """Return whether the stream exists. If the service does not say that it does not, it is assumed to exist."""
        try:
            await self.shards()
        except SourceError as error:
            return error.code not in _GONE
        return True

    def _stream(self) -> dict[str, str]:
        return {"StreamARN" if self.name.service == "kinesis" else "StreamArn": self.name.arn}

    def _shards_of_kinesis(self) -> list[Shard]:
        found: list[Mapping[str, Any]] = []
        given: dict[str, Any] = self._stream()
        while True:
            answer = self._ready().list_shards(**given)
            found += answer["Shards"]
            if not answer.get("NextToken"):
                return [_shard(one) for one in found]
            given = {"NextToken": answer["NextToken"]}

    def _shards_of_dynamodb(self) -> list[Shard]:
        found: list[Mapping[str, Any]] = []
        given: dict[str, Any] = self._stream()
        while True:
            description = self._ready().describe_stream(**given)["StreamDescription"]
            found += description["Shards"]
            if not description.get("LastEvaluatedShardId"):
                return [_shard(one) for one in found]
            given = {**self._stream(), "ExclusiveStartShardId": description["LastEvaluatedShardId"]}

    async def _call(self, work: Callable[[], T]) -> T:
        return await in_thread(lambda: explained(work))

    def _ready(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = make_client(
                    _SERVICES[self.name.service],
                    region=self.name.region,
                    endpoint=self._endpoint,
                    answer_s=_ANSWER_S,
                    connections=_CONNECTIONS,
                )
            return self._client


def _shard(described: Mapping[str, Any]) -> Shard:
    parents = (described.get("ParentShardId"), described.get("AdjacentParentShardId"))
    last = described.get("SequenceNumberRange", {}).get("EndingSequenceNumber")
    return Shard(described["ShardId"], tuple(filter(None, parents)), last)
