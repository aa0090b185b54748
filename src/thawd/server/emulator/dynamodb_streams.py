"""Changes moto's DynamoDB streams so that a reader can poll them for a long time.

This module runs in the emulator's own process. moto keeps an object for every shard iterator that it returns. So a
reader that polls fills the memory and the saved state, and no iterator outlives the process. Here an iterator is a text
that contains the stream and the position.

The ARN of a stream contains a label. If a table is deleted and created again with the same name, it has another stream,
with another label. An ARN with the former label is answered with ResourceNotFoundException.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from thawd.server.emulator.kinesis_destinations import table_shard


def install() -> None:
    """Change ``moto.dynamodbstreams.models``."""
    from moto.core.exceptions import JsonRESTError
    from moto.dynamodb.exceptions import ResourceNotFoundException
    from moto.dynamodbstreams.models import DynamoDBStreamsBackend

    find_table = DynamoDBStreamsBackend._get_table_from_arn

    def table_of(backend: Any, arn: str) -> Any:
        label = arn.rpartition("/stream/")[2]
        table = find_table(backend, arn)
        if table_shard(table) is None or table.latest_stream_label != label:
            raise ResourceNotFoundException(msg=f"Requested resource not found: Stream: {arn} not found")
        return table

    def iterator(backend: Any, arn: str, shard_id: str, kind: str, number: str | int | None = None) -> _Iterator:
        shard = table_of(backend, arn).stream_shard
        if shard.id != shard_id:
            raise ResourceNotFoundException(msg=f"Requested resource not found: Shard: {shard_id} not found")
        first = shard.starting_sequence_number
        places = {"TRIM_HORIZON": first, "LATEST": first + len(shard.items)}
        if number is not None:
            places |= {"AT_SEQUENCE_NUMBER": int(number), "AFTER_SEQUENCE_NUMBER": int(number) + 1}
        if kind not in places:
            raise JsonRESTError("ValidationException", f"SequenceNumber is required for ShardIteratorType {kind}")
        if places[kind] < first:
            raise JsonRESTError("TrimmedDataAccessException", "The requested sequence number has been trimmed")
        return _Iterator(arn, places[kind])

    def records(backend: Any, iterator_arn: str, limit: int) -> dict[str, Any]:
        place = _Iterator.parse(iterator_arn)
        if place is None:
            raise JsonRESTError("ValidationException", "Invalid ShardIterator")
        shard = table_of(backend, place.stream).stream_shard
        region = place.stream.split(":")[3]
        found = [{**one, "eventVersion": "1.1", "awsRegion": region} for one in shard.get(place.number, limit)]
        return {"NextShardIterator": _Iterator(place.stream, place.number + len(found)).arn, "Records": found}

    for name, function in (
        ("_get_table_from_arn", table_of),
        ("get_shard_iterator", iterator),
        ("get_records", records),
    ):
        setattr(DynamoDBStreamsBackend, name, function)


class _Iterator:
    """A shard iterator: a stream and the sequence number of the next record."""

    def __init__(self, stream: str, number: int) -> None:
        self.stream = stream
        self.number = number

    @property
    def arn(self) -> str:
        """The iterator's text."""
        place = json.dumps([self.stream, self.number])
        return f"{self.stream}|1|{base64.b64encode(place.encode()).decode()}"

    @classmethod
    def parse(cls, text: str) -> _Iterator | None:
        """Parse the text of an iterator; None: the text is not valid."""
        try:
            stream, number = json.loads(base64.b64decode(text.rpartition("|")[2], validate=True))
            return cls(str(stream), int(number))
        except (ValueError, TypeError):
            return None
