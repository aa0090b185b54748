"""The package ``thawd`` for handlers on AWS: ``thawd.bucket`` over S3, ``thawd.table`` over DynamoDB.

This file is the package's ``__init__`` in a layer. It uses the standard library and boto3, which Lambda's Python
runtimes have, and works with Python 3.9. The environment variables STACK_THAWD_BUCKETS and STACK_THAWD_TABLES, which
the stack sets, say where each bucket and table is.

Rows have the form that thawd gives to tables in DynamoDB, so a server with ``url = "dynamodb://..."`` reads them, too.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

from thawd.wire.dynamodb_items import EXACT, from_attributes, to_attributes

__all__ = ["bucket", "table"]

_MAX_ITEM_BYTES = 400 * 1024
_MAX_KEY_BYTES = 2048


class ServiceError(Exception):
    """A call to a table or bucket was refused or failed; the message says why."""


class _Clients:
    """boto3's clients, each made at its first use. boto3's clients may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], Any] = {}

    def get(self, service: str, region: str = "") -> Any:
        """Return the client of a service, in a region; empty: the function's region."""
        with self._lock:
            if (service, region) not in self._made:
                import boto3

                self._made[service, region] = boto3.client(service, region_name=region or None)
            return self._made[service, region]


_clients = _Clients()


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key must be a str, not a {type(key).__name__}")
    return key


class Table:
    """A table in DynamoDB: JSON objects by key."""

    def __init__(self, name: str, table: str, key_name: str, region: str) -> None:
        self.name = name
        self._region = region
        self._table = table
        self._key_name = key_name

    def put(self, key: str, item: dict[str, Any]) -> None:
        """Store `item`, a dict that JSON can represent, under `key`; replaces an existing item. Durable on return.

        Raises:
            ServiceError: the item or key cannot be stored, or DynamoDB failed.
        """
        if not isinstance(item, dict):
            raise TypeError(f"an item must be a dict, not a {type(item).__name__}")
        self._check_key(key)
        text = json.dumps(item)
        try:
            json.dumps(item, allow_nan=False)
        except ValueError as error:
            raise ServiceError(f"table {self.name}, key {key!r}: the item is not JSON ({error})") from None
        if len(text.encode()) > _MAX_ITEM_BYTES:
            raise ServiceError(
                f"table {self.name}, key {key!r}: the item has {len(text.encode())} bytes; at most {_MAX_ITEM_BYTES} "
                "are allowed. Store large data in a bucket"
            )
        self._call("put_item", Item=to_attributes(self._partition_key(), key, text))

    def get(self, key: str) -> dict[str, Any] | None:
        """The item under `key`, or None."""
        self._check_key(key)
        name = self._partition_key()
        answer = self._call("get_item", Key={name: {"S": key}}, ConsistentRead=True)
        return json.loads(from_attributes(name, answer["Item"])[1]) if "Item" in answer else None

    def delete(self, key: str) -> None:
        """Remove the item under `key`, if there is one."""
        self._check_key(key)
        self._call("delete_item", Key={self._partition_key(): {"S": key}})

    def scan(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Iterate over all items as (key, item), in DynamoDB's order, fetched a page at a time."""
        name = self._partition_key()
        start: dict[str, Any] = {}
        while True:
            page = self._call("scan", ConsistentRead=True, **start)
            for attributes in page.get("Items", []):
                key, text = from_attributes(name, attributes)
                yield key, json.loads(text)
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _check_key(self, key: Any) -> None:
        try:
            size = len(_text(key).encode())
        except UnicodeEncodeError as error:
            raise ServiceError(f"table {self.name}: the key {key!r} is not Unicode text ({error.reason})") from None
        if not 1 <= size <= _MAX_KEY_BYTES:
            raise ServiceError(f"table {self.name}: the key has {size} bytes; 1 to {_MAX_KEY_BYTES} are allowed")

    def _partition_key(self) -> str:
        if not self._key_name:
            schema = {entry["KeyType"]: entry["AttributeName"] for entry in self._describe()["KeySchema"]}
            if "RANGE" in schema or schema["HASH"] == EXACT:
                raise ServiceError(f"table {self.name}: {self._table} must have a partition key and no sort key")
            self._key_name = schema["HASH"]
        return self._key_name

    def _describe(self) -> Any:
        return self._call("describe_table")["Table"]

    def _call(self, operation: str, **parameters: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(_clients.get("dynamodb", self._region), operation)(TableName=self._table, **parameters)
        except (BotoCoreError, ClientError) as error:
            raise ServiceError(f"table {self.name}: {self._table} in DynamoDB failed: {error}") from error


class Bucket:
    """A bucket in S3. Keys are S3's full keys, as in events."""

    def __init__(self, name: str, bucket: str, prefix: str) -> None:
        self.name = name
        self._bucket = bucket
        self._prefix = prefix

    def path(self, key: str) -> str:
        """Raise an error: an object in S3 has no path.

        Raises:
            ServiceError: always.
        """
        raise ServiceError(f"the bucket {self.name} is in S3, so {key!r} has no path; use read and write")

    def read(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            FileNotFoundError: there is no such object.
            ServiceError: S3 failed, or the key is outside the bucket.
        """
        answer = self._call("get_object", key)
        return answer["Body"].read()  # type: ignore[no-any-return]

    def write(self, key: str, data: bytes) -> None:
        """Store the object; replaces an existing object. Durable on return.

        Raises:
            ServiceError: S3 failed, or the key is outside the bucket.
        """
        self._call("put_object", key, Body=bytes(data))

    def _call(self, operation: str, key: Any, **parameters: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        if not _text(key).startswith(self._prefix) or key == self._prefix:
            raise ServiceError(f"bucket {self.name}: the key {key!r} is not below the prefix {self._prefix!r}")
        try:
            return getattr(_clients.get("s3"), operation)(Bucket=self._bucket, Key=key, **parameters)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                raise FileNotFoundError(f"bucket {self.name}: there is no object {key!r}") from None
            raise ServiceError(f"bucket {self.name}: {self._bucket} in S3 failed: {error}") from error
        except BotoCoreError as error:
            raise ServiceError(f"bucket {self.name}: {self._bucket} in S3 failed: {error}") from error


def _place(kind: str, name: str) -> list[str]:
    places: dict[str, list[str]] = json.loads(os.environ.get(f"STACK_THAWD_{kind.upper()}S", "{}"))
    for place in places.values():
        if name not in places and place[0] == name:  # an event contains S3's own name of the bucket
            return place
    if name not in places:
        known = ", ".join(sorted(places)) or "none"
        raise ServiceError(f"there is no {kind} {name!r} that this function's code was seen to use; there are: {known}")
    return places[name]


def table(name: str) -> Table:
    """The table that thawd.toml declares under `name`.

    Raises:
        ServiceError: there is no such table.
    """
    return Table(name, *_place("table", name))


def bucket(name: str) -> Bucket:
    """The bucket that thawd.toml declares under `name`.

    Raises:
        ServiceError: there is no such bucket.
    """
    return Bucket(name, *_place("bucket", name))
