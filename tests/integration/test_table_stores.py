"""What every table guarantees in every kind of store: the same tests for SQLite, PostgreSQL and DynamoDB."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.emulated import EmulatedAws
from tests.integration.postgresql import Postgresql
from thawd.errors import InvalidParameterValueException
from thawd.resources import StoreUrl, Table
from thawd.stores.tables.access import MAX_ITEM_BYTES, AwsAccess, Tables, TableStore
from thawd.stores.tables.threads import THREADS, ThreadedTable

STORES = ("sqlite", "postgresql", "dynamodb")


@pytest.fixture(scope="module", params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def opened(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """A table ``labels`` in a store of this kind."""
    if kind == "sqlite":
        tables = Tables({"labels": Table(name="labels", path=tmp_path_factory.mktemp("tables") / "labels.db")})
        yield tables
        tables.close()
    elif kind == "postgresql":
        with Postgresql() as server:
            url = StoreUrl(text=server.url(), shown="postgresql://there")
            tables = Tables({"labels": Table(name="labels", url=url)})
            yield tables
            tables.close()
    else:
        with EmulatedAws() as aws:
            aws.make_table("labels-there")
            url = StoreUrl(text="dynamodb://labels-there?region=us-east-1", shown="dynamodb://there")
            access = AwsAccess(endpoint_url=aws.url, access_key="test", secret="test")
            tables = Tables({"labels": Table(name="labels", url=url)}, aws=access)
            yield tables
            tables.close()


@pytest.fixture
def store(opened: Tables) -> TableStore:
    """The table, empty."""

    async def emptied() -> TableStore:
        table = await opened.get("labels")
        while page := await table.scan():
            for key, _ in page:
                assert await table.delete(key)
        return table

    return asyncio.run(emptied())


async def everything(store: TableStore, limit: int) -> list[tuple[str, bytes]]:
    """Return everything that a scan yields, page by page."""
    found: list[tuple[str, bytes]] = []
    after = ""
    while page := await store.scan(after=after, limit=limit):
        found += page
        after = page[-1][0]
        if len(page) < limit:
            break
    return found


def test_items_come_back_byte_for_byte_and_the_last_put_wins(store: TableStore) -> None:
    async def scenario() -> None:
        item = '{"label": "ü", "p": 0.50, "n":\n1e40, "n": 2, "z": "\\u0000", "": {"": 1E-5}}'.encode()
        await store.put("k", b'{"label":"old"}')
        await store.put("k", item)
        await store.put("k", item)
        assert await store.get("k") == item
        assert await store.get("unknown") is None
        assert await store.count() == 1
        assert await store.delete("k") is True
        assert await store.delete("k") is False
        assert await store.get("k") is None
        assert await store.count() == 0

    asyncio.run(scenario())


def test_a_scan_gives_every_item_once_and_in_the_order_of_keys_where_the_store_has_one(
    store: TableStore, kind: str
) -> None:
    async def scenario() -> None:
        keys = [f"k{i}" for i in range(25)] + ["ü", "😀", "a b", "z\0y", "z", "z\x01", "z\x01\x00", "Z", "z\x02", "ﬀ"]
        await asyncio.gather(*(store.put(key, json.dumps({"k": key}).encode()) for key in keys))
        found = await everything(store, 7)
        assert {key: json.loads(item)["k"] for key, item in found} == {key: key for key in keys}
        assert len(found) == len(keys)
        if kind != "dynamodb":
            assert [key for key, _ in found] == sorted(keys, key=str.encode)
        assert await store.count() == len(keys)
        assert len(await store.scan(limit=1000)) == len(keys)
        # A scan can continue after a key that no longer exists
        first, second = await store.scan(limit=2)
        assert (await store.scan(after=first[0], limit=1))[0] == second

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{}x", "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b'{"a":' + b"[" * 150_000 + b"]" * 150_000 + b"}", "not JSON"),
        (b"[1]", "is a JSON array"),
        (b'"x"', "is a JSON string"),
        (b"1", "is a JSON number"),
        (b"null", "is a JSON null"),
        (b"true", "is a JSON boolean"),
        (b'{"a":"' + b"x" * MAX_ITEM_BYTES + b'"}', "at most 409600 are allowed"),
    ],
)
def test_what_is_no_item_is_refused_by_table_and_key(store: TableStore, item: bytes, said: str) -> None:
    with pytest.raises(InvalidParameterValueException, match=said) as caught:
        asyncio.run(store.put("cat.png", item))
    assert "table labels, key 'cat.png'" in str(caught.value)
    assert not caught.value.retryable
    assert asyncio.run(store.count()) == 0


def test_an_item_of_exactly_the_limit_is_taken(store: TableStore) -> None:
    texts = ["x" * (MAX_ITEM_BYTES - 8), "ü" * ((MAX_ITEM_BYTES - 8) // 2)]
    for text in texts:
        item = json.dumps({"a": text}, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(item) == MAX_ITEM_BYTES
        asyncio.run(store.put("k" * 2048, item))
        assert asyncio.run(store.get("k" * 2048)) == item


@pytest.mark.parametrize(
    ("key", "said"), [("", "has 0 bytes"), ("ü" * 1025, "has 2050 bytes"), ("\udcff.png", "not valid Unicode")]
)
def test_what_is_no_key_is_refused(store: TableStore, key: str, said: str) -> None:
    for operation in (store.put(key, b"{}"), store.get(key), store.delete(key)):
        with pytest.raises(InvalidParameterValueException, match=said):
            asyncio.run(operation)


def test_slow_operations_do_not_hold_up_the_event_loop(
    store: TableStore, opened: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No operation ends before the event loop has run during it, although there are more than the store has threads."""
    loop_ran = threading.Event()
    lock = None
    if isinstance(store, ThreadedTable):
        put = store._table.put

        def slow_put(key: str, text: str) -> None:
            assert loop_ran.wait(30), "the event loop did not run during the operations"
            put(key, text)

        monkeypatch.setattr(store._table, "put", slow_put)
    else:
        path = opened._tables["labels"].path
        assert path is not None
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")

    async def scenario() -> None:
        puts = [asyncio.ensure_future(store.put(f"{i}", b'{"a":1}')) for i in range(2 * THREADS)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(put.done() for put in puts)
        loop_ran.set()
        if lock is not None:
            lock.close()
        await asyncio.gather(*puts)
        assert await store.count() == 2 * THREADS

    asyncio.run(scenario())


KEYS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**45), 10**45)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ITEMS = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(),
    st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), VALUES, max_size=5),
    st.booleans(),
    st.sampled_from([None, 1]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_table_is_a_mapping(opened: Tables, kind: str, data: st.DataObject) -> None:
    """For any sequence of put, get and delete, the answers are those of a dict."""
    known = data.draw(st.lists(KEYS, min_size=1, max_size=4, unique=True))
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from(["put", "put", "get", "delete"]), st.sampled_from(known), ITEMS), max_size=12
        )
    )

    async def scenario() -> None:
        store = await opened.get("labels")
        for key, _ in await everything(store, 100):
            await store.delete(key)
        expected: dict[str, bytes] = {}
        for step, key, item in steps:
            if step == "put":
                await store.put(key, item)
                expected[key] = item
            elif step == "get":
                assert await store.get(key) == expected.get(key)
            else:
                assert await store.delete(key) == (expected.pop(key, None) is not None)
        found = await everything(store, 2)
        assert dict(found) == expected
        assert len(found) == await store.count() == len(expected)
        if kind != "dynamodb":
            assert [key for key, _ in found] == sorted(expected, key=str.encode)

    asyncio.run(scenario())
