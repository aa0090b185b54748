"""Tables in DynamoDB: what users see there, items of other programs, which tables are accepted, and the messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.integration.conftest import Project
from tests.integration.emulated import EmulatedAws
from thawd.errors import InvalidParameterValueException, StoreError
from thawd.resources import StoreUrl, Table
from thawd.stores.tables.access import Tables, read_item, read_table
from thawd.wire.dynamodb_items import from_attributes, to_attributes

pytestmark = pytest.mark.usefixtures("aws_credentials")


def table_of(aws: EmulatedAws, name: str) -> Table:
    text = f"dynamodb://{name}?region=us-east-1&endpoint={aws.url}"
    return Table(name=name, url=StoreUrl(text=text, shown=text))


def run(table: Table, *operations: tuple[Any, ...]) -> list[Any]:
    """Run operations on a table, each a method and its arguments, and return the answers."""
    tables = Tables({table.name: table})

    async def scenario() -> list[Any]:
        store = await tables.get(table.name)
        return [await getattr(store, method)(*arguments) for method, *arguments in operations]

    try:
        return asyncio.run(scenario())
    finally:
        tables.close()


def test_fields_are_attributes_that_people_and_programs_read(aws: EmulatedAws) -> None:
    aws.make_table("seen", key="Id")
    item = (
        b'{"label": "cat", "p": 0.1000000000000000000000000000000001, "big": 12345678901234567890123456789012345678,'
        b' "tags": ["a", 1, null, true], "box": {"x": 1.50}, "Id": "mine", "": 1, "tiny": 1e-200}'
    )
    run(table_of(aws, "seen"), ("put", "k", item))
    (row,) = aws.client("dynamodb").scan(TableName="seen")["Items"]
    assert row["Id"] == {"S": "k"}
    assert row["label"] == {"S": "cat"}
    assert row["p"] == {"N": "0.1000000000000000000000000000000001"}
    assert row["big"] == {"N": "12345678901234567890123456789012345678"}
    assert row["tags"] == {"L": [{"S": "a"}, {"N": "1"}, {"NULL": True}, {"BOOL": True}]}
    assert row["box"] == {"M": {"x": {"N": "1.50"}}}
    # As text, because DynamoDB has no numbers this small. It also has no attributes without a name, and the key's name
    # is taken
    assert row["tiny"] == {"S": "1e-200"}
    assert row["_json"] == {"S": item.decode()}
    assert set(row) == {"Id", "label", "p", "big", "tags", "box", "tiny", "_json"}


def test_what_would_be_too_large_twice_is_kept_once_and_compressed() -> None:
    text = json.dumps({"a": "ü" * 150_000}, ensure_ascii=False)
    row = to_attributes("key", "k", text)
    assert set(row) == {"key", "_json"}
    assert len(row["_json"]["B"]) < 400_000
    assert from_attributes("key", row) == ("k", text.encode())


def test_numbers_and_depths_that_dynamodb_has_not_are_no_obstacle() -> None:
    deep = "[" * 200 + "]" * 200
    text = f'{{"a": 1e-99999999999999999999, "b": {"9" * 39}, "c": {deep}, "d": 0e500, "e": "\\ud800", "f": -0.0}}'
    row = to_attributes("key", "k", text)
    assert row["a"] == {"S": "1e-99999999999999999999"}
    assert row["b"] == {"S": "9" * 39}
    assert row["d"] == {"N": "0e500"}
    assert "c" not in row
    assert "e" not in row
    assert from_attributes("key", row) == ("k", text.encode())


def test_items_that_other_programs_wrote_are_read_as_their_attributes_say(aws: EmulatedAws) -> None:
    aws.make_table("foreign", key="name")
    aws.client("dynamodb").put_item(
        TableName="foreign",
        Item={
            "name": {"S": "k"},
            "n": {"N": "0.1000000000000000000000001"},
            "set": {"SS": ["a"]},
            "numbers": {"NS": ["1"]},
            "bytes": {"B": b"\x00\xff"},
            "map": {"M": {"a": {"L": [{"BOOL": False}, {"NULL": True}]}}},
        },
    )
    (item,) = run(table_of(aws, "foreign"), ("get", "k"))
    assert b"0.1000000000000000000000001" in item
    value = json.loads(item)
    assert value["set"] == ["a"]
    assert value["numbers"] == [1]
    assert value["bytes"] == "AP8="
    assert value["map"] == {"a": [False, None]}
    assert "name" not in value


@pytest.mark.parametrize(("kind", "sort"), [("N", None), ("S", "when")])
def test_a_table_with_another_key_is_refused_with_the_way_to_make_one(
    aws: EmulatedAws, kind: str, sort: str | None
) -> None:
    name = f"unfit-{kind}-{sort}"
    aws.make_table(name, kind=kind, sort=sort)
    with pytest.raises(StoreError, match="must have a partition key of type string"):
        run(table_of(aws, name), ("put", "k", b"{}"))


def test_a_table_that_is_missing_is_found_once_it_is_made(aws: EmulatedAws) -> None:
    tables = Tables({"missing": table_of(aws, "missing")})

    async def scenario() -> None:
        store = await tables.get("missing")
        with pytest.raises(StoreError, match="does not exist in this account and region") as caught:
            await store.put("k", b"{}")
        assert caught.value.retryable
        aws.make_table("missing")
        await store.put("k", b"{}")
        # And again, with another name for its key
        aws.client("dynamodb").delete_table(TableName="missing")
        with pytest.raises((StoreError, InvalidParameterValueException)):
            await store.put("k", b"{}")
        aws.make_table("missing", key="other")
        await store.put("k", b"{}")
        assert await store.get("k") == b"{}"

    asyncio.run(scenario())
    tables.close()


def test_an_endpoint_that_does_not_answer_is_told_as_something_that_may_pass() -> None:
    with EmulatedAws() as gone:
        table = table_of(gone, "there")
        gone.make_table("there")
        tables = Tables({"there": table})

        async def scenario() -> None:
            store = await tables.get("there")
            await store.put("k", b"{}")
            gone.stop()
            with pytest.raises(StoreError, match="table there: dynamodb://there") as caught:
                await store.put("k", b"{}")
            assert caught.value.retryable

        asyncio.run(scenario())
        tables.close()


def test_the_reader_reads_all_pages(aws: EmulatedAws) -> None:
    aws.make_table("pages")
    # Given more than the megabyte that one answer may hold
    filler = "x" * 100_000
    run(table_of(aws, "pages"), *(("put", f"{i:03d}", json.dumps({"i": i, "x": filler}).encode()) for i in range(30)))
    found = list(read_table(table_of(aws, "pages")))
    assert sorted(json.loads(item)["i"] for _, item in found) == list(range(30))
    assert run(table_of(aws, "pages"), ("count",)) == [30]
    item = read_item(table_of(aws, "pages"), "007")
    assert item is not None
    assert json.loads(item)["i"] == 7


def test_a_function_writes_into_the_emulated_dynamodb_of_up_aws(project: Project) -> None:
    project.code(
        """
        import boto3, thawd

        def make(event, context):
            boto3.client("dynamodb").create_table(
                TableName="labels-there", BillingMode="PAY_PER_REQUEST",
                KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}])

        def handler(event, context):
            thawd.table("labels").put("k", {"p": 0.5})
            row = boto3.client("dynamodb").get_item(TableName="labels-there", Key={"key": {"S": "k"}})["Item"]
            return row["p"]["N"]
        """
    )
    project.config(
        """
        [functions.make]
        handler = "app.make"

        [functions.label]
        handler = "app.handler"

        [tables.labels]
        url = "dynamodb://labels-there"
        """
    )
    with project.up("--aws") as running:
        assert running.invoke("make") == (None, None)
        assert running.invoke("label") == ("0.5", None)
