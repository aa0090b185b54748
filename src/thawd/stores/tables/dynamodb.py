"""A table in DynamoDB. The DynamoDB table must exist, with a partition key of type string and without a sort key.

`dynamodb_items` says how items are stored.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from thawd.errors import InvalidParameterValueException, StoreError, ThawdError
from thawd.resources import REGION, StoreUrl
from thawd.stores.tables.threads import THREADS
from thawd.wire.dynamodb_items import EXACT, from_attributes, to_attributes

T = TypeVar("T")
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S, _ATTEMPTS = 5, 10, 3


class AwsAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoint and credentials to use instead of the usual ones of AWS, for example those of an emulator.

    Attributes:
        endpoint_url: address of all services.
        access_key: id of an access key.
        secret: the key's secret.
    """

    endpoint_url: str
    access_key: str
    secret: str

    def __repr__(self) -> str:
        return f"AwsAccess({self.endpoint_url!r})"


class DynamodbTable:
    """A `thawd.stores.tables.threads.BlockingTable` in DynamoDB.

    Args:
        name: the table's name.
        url: ``dynamodb://TABLE`` with the optional parameters ``region``, ``endpoint`` and ``profile``; without them,
            AWS's usual settings apply.
        aws: endpoint and credentials to use instead of the usual ones, for example of an emulator; None: the usual.

    The first operation connects to DynamoDB. All methods raise `StoreError` when DynamoDB cannot be reached, throttles
    or refuses a request; the next call tries again.
    """

    def __init__(self, name: str, url: StoreUrl, *, aws: AwsAccess | None = None) -> None:
        parts = urlsplit(url.text)
        self._name = name
        self._url = url
        self._aws = aws
        self._table = parts.netloc
        self._parameters = dict(parse_qsl(parts.query))
        self._lock = threading.Lock()
        self._client: Any = None
        self._key = ""

    def put(self, key: str, text: str) -> None:
        """Store the item; durable on return."""
        self._call(lambda client: client.put_item(TableName=self._table, Item=to_attributes(self._key, key, text)))

    def get(self, key: str) -> bytes | None:
        """The item that was last put; None: there is none."""
        answer = self._call(
            lambda client: client.get_item(TableName=self._table, Key={self._key: {"S": key}}, ConsistentRead=True)
        )
        return from_attributes(self._key, answer["Item"])[1] if "Item" in answer else None

    def delete(self, key: str) -> bool:
        """Remove the item; returns whether there was one.

        The answer is wrong if the first request removed the item, its answer was lost, and boto3 repeated the request.
        """
        answer = self._call(
            lambda client: client.delete_item(
                TableName=self._table, Key={self._key: {"S": key}}, ReturnValues="ALL_OLD"
            )
        )
        return "Attributes" in answer

    def scan(self, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Up to `limit` keys and items after the key `after`, in DynamoDB's own order, which does not change."""
        found: list[tuple[str, bytes]] = []
        while len(found) < limit:
            page = self._scan_page(after, Limit=limit - len(found))
            found += [from_attributes(self._key, item) for item in page.get("Items", [])]
            if "LastEvaluatedKey" not in page:
                break
            after = page["LastEvaluatedKey"][self._key]["S"]
        return found

    def count(self) -> int:
        """How many items there are. DynamoDB reads all of them to count them, and charges for that."""
        counted = 0
        after = ""
        while True:
            page = self._scan_page(after, Select="COUNT")
            counted += int(page["Count"])
            if "LastEvaluatedKey" not in page:
                return counted
            after = page["LastEvaluatedKey"][self._key]["S"]

    def break_off(self) -> None:
        """Do nothing: an operation that waits in boto3 cannot be interrupted."""

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _scan_page(self, after: str, **more: Any) -> dict[str, Any]:
        def work(client: Any) -> dict[str, Any]:
            if after:
                more["ExclusiveStartKey"] = {self._key: {"S": after}}
            answer: dict[str, Any] = client.scan(TableName=self._table, ConsistentRead=True, **more)
            return answer

        return self._call(work)

    def _call(self, work: Callable[[Any], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            return work(self._connected())
        except ClientError as error:
            raise self._explained(error) from None
        except (BotoCoreError, HTTPClientError) as error:
            raise StoreError(f"table {self._name}: {self._url} failed: {self._url.conceal(str(error))}") from None

    def _connected(self) -> Any:
        """The client; the first call creates it and checks the table."""
        with self._lock:
            if self._client is None:
                client = self._make_client()
                try:
                    self._key = self._partition_key(client.describe_table(TableName=self._table)["Table"])
                except BaseException:
                    client.close()
                    raise
                self._client = client
        return self._client

    def _make_client(self) -> Any:
        import boto3
        from botocore.config import Config

        parameters = self._parameters
        session = boto3.Session(profile_name=parameters.get("profile"))
        keys = {}
        if self._aws is not None:
            keys = {"aws_access_key_id": self._aws.access_key, "aws_secret_access_key": self._aws.secret}
        return session.client(
            "dynamodb",
            region_name=parameters.get("region") or session.region_name or REGION,
            endpoint_url=parameters.get("endpoint") or (self._aws.endpoint_url if self._aws is not None else None),
            config=Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                max_pool_connections=THREADS,
            ),
            **keys,
        )

    def _partition_key(self, description: dict[str, Any]) -> str:
        keys = {entry["KeyType"]: entry["AttributeName"] for entry in description["KeySchema"]}
        types = {entry["AttributeName"]: entry["AttributeType"] for entry in description["AttributeDefinitions"]}
        name: str = keys["HASH"]
        if "RANGE" in keys or types[name] != "S" or name == EXACT:
            raise StoreError(
                f"table {self._name}: the DynamoDB table {self._url} must have a partition key of type string and no "
                f"sort key, and the key must not be called {EXACT}, where thawd stores items; its partition key is "
                f"{name} of type {types[name]}"
                f"{', and it has a sort key' if 'RANGE' in keys else ''}. "
                "Create another table: aws dynamodb create-table --table-name NAME --billing-mode PAY_PER_REQUEST "
                "--attribute-definitions AttributeName=key,AttributeType=S --key-schema AttributeName=key,KeyType=HASH"
            )
        return name

    def _explained(self, error: Any) -> ThawdError:
        code = error.response.get("Error", {}).get("Code", "")
        said = self._url.conceal(str(error))
        if code == "ValidationException":
            self._forget_client()
            return InvalidParameterValueException(f"table {self._name}: DynamoDB does not accept the item ({said})")
        if code == "ResourceNotFoundException":
            self._forget_client()
            return StoreError(
                f"table {self._name}: {self._url} does not exist in this account and region ({said}); create it with a "
                "partition key of type string"
            )
        return StoreError(f"table {self._name}: {self._url} failed: {said}")

    def _forget_client(self) -> None:
        """Make the next call check the table again, because the table may have been created again with another key."""
        with self._lock:
            client, self._client = self._client, None
        with contextlib.suppress(Exception):
            if client is not None:
                client.close()
