"""A table in DynamoDB. The DynamoDB table must exist, with a partition key of type string and without a sort key.

The fields of an item that DynamoDB can hold are stored as attributes, so that people can read them in the console and
other programs can query them. DynamoDB keeps neither the order of fields nor the notation of numbers, so the item's
text is stored too, in the attribute ``_json``, and this text is returned. If the attributes and the text together could
exceed DynamoDB's size limit, only the text is stored, compressed. If another program wrote an item without ``_json``,
the returned item is made from its attributes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from thawd.errors import InvalidParameterValueException, StoreError, ThawdError
from thawd.resources import REGION, StoreUrl
from thawd.stores.tables.threads import THREADS

T = TypeVar("T")
Attribute = dict[str, Any]
"""A value in the form of DynamoDB's API, a type and a content, for example ``{"N": "0.50"}``."""

EXACT = "_json"
"""The attribute that contains the item's text."""
# Source: DynamoDB developer guide, "Constraints": item size, number precision and range, nesting depth.
_MAX_ITEM_BYTES = 400 * 1024
_MAX_DIGITS, _LEAST_EXPONENT, _MOST_EXPONENT = 38, -130, 125
_MAX_DEPTH = 30
# A safety margin, because DynamoDB documents only roughly how it counts sizes.
_SIZE_MARGIN_BYTES = 4096
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


class _Number(str):
    """A JSON number in its original notation."""


class _NoAttribute(Exception):
    """A value that DynamoDB cannot store as an attribute."""


def to_attributes(key_name: str, key: str, text: str) -> dict[str, Attribute]:
    """The DynamoDB attributes for the item `text` (a JSON object) under `key`; `key_name` names the partition key."""
    item: dict[str, Attribute] = {key_name: {"S": key}, EXACT: {"S": text}}
    for name, value in _fields(text).items():
        with contextlib.suppress(_NoAttribute):
            _require_name(name)
            if name not in item:
                item[name] = _attribute(value, 0)
    if sum(_name_bytes(name) + _value_bytes(value) for name, value in item.items()) > (
        _MAX_ITEM_BYTES - _SIZE_MARGIN_BYTES
    ):
        return {key_name: {"S": key}, EXACT: {"B": zlib.compress(text.encode(), 9)}}
    return item


def _fields(text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text, parse_float=_Number, parse_int=_Number)
    except RecursionError:
        return {}  # nested more deeply than attributes can be
    return fields


def from_attributes(key_name: str, item: dict[str, Attribute]) -> tuple[str, bytes]:
    """Key and item, from the DynamoDB attributes."""
    key: str = item[key_name]["S"]
    exact = item.get(EXACT, {})
    if "S" in exact:
        return key, exact["S"].encode()
    if "B" in exact:
        with contextlib.suppress(zlib.error):
            return key, zlib.decompress(exact["B"])
    fields = ((name, value) for name, value in item.items() if name != key_name)
    return key, ("{" + ", ".join(f"{json.dumps(name)}: {_json(value)}" for name, value in fields) + "}").encode()


def _attribute(value: Any, depth: int) -> Attribute:
    """A value as an attribute.

    Raises:
        _NoAttribute: DynamoDB cannot store the value as an attribute.
    """
    if depth > _MAX_DEPTH:
        raise _NoAttribute
    if isinstance(value, _Number):
        return {"N": str(value)} if _is_storable(value) else {"S": str(value)}
    if isinstance(value, bool):
        return {"BOOL": value}
    if value is None:
        return {"NULL": True}
    if isinstance(value, str):
        return {"S": _require_text(value)}
    if isinstance(value, list):
        return {"L": [_attribute(entry, depth + 1) for entry in value]}
    return {"M": {_require_name(name): _attribute(entry, depth + 1) for name, entry in value.items()}}


def _is_storable(number: str) -> bool:
    try:
        _, digits, exponent = Decimal(number).as_tuple()
    except ArithmeticError:
        return False  # the exponent is too large for Decimal
    assert isinstance(exponent, int)
    significant = len("".join(map(str, digits)).strip("0"))
    adjusted = exponent + len(digits) - 1
    return not any(digits) or (significant <= _MAX_DIGITS and _LEAST_EXPONENT <= adjusted <= _MOST_EXPONENT)


def _require_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NoAttribute from None
    return text


def _require_name(name: str) -> str:
    if not name:
        raise _NoAttribute
    return _require_text(name)


def _name_bytes(name: str) -> int:
    return len(name.encode())


def _value_bytes(value: Attribute) -> int:
    """How many bytes DynamoDB counts for an attribute's value. Source: developer guide, "Item sizes and formats"."""
    ((kind, held),) = value.items()
    if kind == "S":
        return len(held.encode())
    if kind == "N":
        return len(held) // 2 + 3
    if kind == "L":
        return 3 + sum(1 + _value_bytes(entry) for entry in held)
    if kind == "M":
        return 3 + sum(1 + _name_bytes(name) + _value_bytes(entry) for name, entry in held.items())
    return 1


def _json(value: Attribute) -> str:
    """A value that another program stored, as JSON text: numbers unchanged, sets as lists, bytes in Base64."""
    ((kind, held),) = value.items()
    return "".join(_json_parts(kind, held))


def _json_parts(kind: str, held: Any) -> Iterator[str]:
    if kind == "N":
        yield str(held)
    elif kind in ("L", "SS", "NS", "BS"):
        entries = held if kind == "L" else [{kind[0]: entry} for entry in held]
        yield "[" + ", ".join(map(_json, entries)) + "]"
    elif kind == "M":
        yield "{" + ", ".join(f"{json.dumps(name)}: {_json(entry)}" for name, entry in held.items()) + "}"
    elif kind == "B":
        yield json.dumps(base64.b64encode(held).decode())
    elif kind == "NULL":
        yield "null"
    else:
        yield json.dumps(held)
