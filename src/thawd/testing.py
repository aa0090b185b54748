"""Stand-ins for testing handlers without a server: a context object, and tables and buckets in memory.

::

    from thawd import testing

    with testing.stores(objects={"uploads": {"cat.png": data}}) as stores:
        handler(event, testing.context())
    assert stores.tables["labels"]["cat.png"] == {"label": "cat"}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import thawd


@dataclass
class FakeContext:
    """Stands in for Lambda's context object: the same attributes, with plausible values.

    Attributes:
        remaining_ms: the value that `get_remaining_time_in_millis` returns, milliseconds.
    """

    function_name: str = "function"
    function_version: str = "$LATEST"
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:000000000000:function:function"
    memory_limit_in_mb: str = "512"
    aws_request_id: str = "00000000-0000-4000-8000-000000000000"
    log_group_name: str = "/aws/lambda/function"
    log_stream_name: str = "2026/01/01/[$LATEST]00000000000000000000000000000000"
    client_context: Any = None
    identity: Any = None
    tenant_id: str | None = None
    remaining_ms: int = 30_000

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds left, always `remaining_ms`."""
        return self.remaining_ms

    def log(self, message: Any) -> None:
        """Print `message`."""
        print(message, end="")


def context(**changes: Any) -> FakeContext:
    """A context object; `changes` replace attributes of `FakeContext`."""
    return FakeContext(**changes)


@dataclass
class FakeBatchContext(FakeContext):
    """Stands in for the context that a handler gets with a list of events.

    Attributes:
        items: one context for each event of the list.
    """

    items: list[FakeContext] = field(default_factory=list)


def batch_context(size: int, **changes: Any) -> FakeBatchContext:
    """A context for a handler that takes a list of `size` events; `changes` replace attributes of `FakeContext`."""
    request_ids = [f"00000000-0000-4000-8000-{number:012x}" for number in range(size)]
    items = [FakeContext(**{"aws_request_id": request_id, **changes}) for request_id in request_ids]
    return FakeBatchContext(**{"aws_request_id": ",".join(request_ids), **changes}, items=items)


class FakeTable:
    """A table in memory. Like a real table, it accepts only items that can be encoded as JSON."""

    def __init__(self, items: dict[str, dict[str, Any]]) -> None:
        self._items = items

    def put(self, key: str, item: dict[str, Any]) -> None:
        """Store `item` under `key`."""
        if not isinstance(item, dict):
            raise TypeError(f"an item must be a dict, not a {type(item).__name__}")
        self._items[key] = json.loads(json.dumps(item))

    def get(self, key: str) -> dict[str, Any] | None:
        """The item under `key`, or None."""
        return self._items.get(key)

    def delete(self, key: str) -> None:
        """Remove the item under `key`, if there is one."""
        self._items.pop(key, None)

    def scan(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """All items as (key, item), in order of their keys."""
        yield from sorted(self._items.items())


class FakeBucket:
    """A bucket in memory."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def read(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            FileNotFoundError: there is no such object.
        """
        try:
            return self._objects[key]
        except KeyError:
            raise FileNotFoundError(key) from None

    def write(self, key: str, data: bytes) -> None:
        """Store the object."""
        self._objects[key] = bytes(data)


@dataclass
class Stores:
    """The tables and buckets of one test.

    Attributes:
        tables: items by table name, then by key.
        buckets: bytes of the objects by bucket name, then by key.
    """

    tables: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def table(self, name: str) -> FakeTable:
        """Stands in for `thawd.table`."""
        return FakeTable(self.tables.setdefault(name, {}))

    def bucket(self, name: str) -> FakeBucket:
        """Stands in for `thawd.bucket`."""
        return FakeBucket(self.buckets.setdefault(name, {}))


@contextlib.contextmanager
def stores(*, objects: Mapping[str, Mapping[str, bytes]] | None = None) -> Iterator[Stores]:
    """Inside the ``with`` block, ``thawd.table`` and ``thawd.bucket`` work in memory.

    Args:
        objects: bytes of the objects that exist at the start, by bucket name, then by key.
    """
    in_memory = Stores(buckets={name: dict(contents) for name, contents in (objects or {}).items()})
    with (
        mock.patch.object(thawd, "table", in_memory.table, create=True),
        mock.patch.object(thawd, "bucket", in_memory.bucket, create=True),
    ):
        yield in_memory
