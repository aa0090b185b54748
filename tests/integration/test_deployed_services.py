"""The package ``thawd`` for handlers on AWS behaves like the one in thawd, over emulated S3 and DynamoDB."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from tests.clients import client_of
from tests.integration.emulated import EmulatedAws
from thawd.resources import StoreUrl, Table
from thawd.runtime import deployed_services
from thawd.stores.tables.access import AwsAccess, Tables


class _Clients:
    def __init__(self, url: str) -> None:
        self._made = {service: client_of(url, service) for service in ("dynamodb", "s3")}

    def get(self, service: str, region: str = "") -> object:
        assert region in ("", "us-east-1")
        return self._made[service]


@pytest.fixture(autouse=True)
def deployed(aws: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedAws]:
    """What a deployed function has: its table, its bucket, and the variables that name them."""
    aws.make_table("shop-labels")
    aws.make_table("theirs", key="Id")
    aws.client("s3").create_bucket(Bucket="shop-uploads")
    monkeypatch.setattr(deployed_services, "_clients", _Clients(aws.url))
    tables = {"labels": ["shop-labels", "key", ""], "theirs": ["theirs", "", "us-east-1"], "gone": ["gone", "key", ""]}
    monkeypatch.setenv("STACK_THAWD_TABLES", json.dumps(tables))
    buckets = {"uploads": ["shop-uploads", ""], "part": ["shop-uploads", "in/"], "gone": ["gone", ""]}
    monkeypatch.setenv("STACK_THAWD_BUCKETS", json.dumps(buckets))
    yield aws
    for name in ("shop-labels", "theirs"):
        aws.client("dynamodb").delete_table(TableName=name)
    client = aws.client("s3")
    for entry in client.list_objects_v2(Bucket="shop-uploads").get("Contents", []):
        client.delete_object(Bucket="shop-uploads", Key=entry["Key"])
    client.delete_bucket(Bucket="shop-uploads")


@pytest.mark.parametrize("name", ["labels", "theirs"])
def test_items_are_put_read_replaced_scanned_and_deleted(name: str) -> None:
    table = deployed_services.table(name)
    item = {"label": "cat", "p": 0.1, "big": 12345678901234567890, "deep": [{"a": None}, True, ""], "": "nameless"}
    table.put("a/ä", item)
    table.put("b", {})
    assert table.get("a/ä") == item
    table.put("a/ä", {"label": "dog"})
    assert dict(table.scan()) == {"a/ä": {"label": "dog"}, "b": {}}
    table.delete("b")
    table.delete("b")
    assert table.get("b") is None


def test_a_server_reads_the_rows_of_a_deployed_function_exactly(deployed: EmulatedAws) -> None:
    deployed_services.table("labels").put("k", {"z": 1.50, "a": [1e-200]})

    async def read() -> bytes | None:
        url = StoreUrl(text="dynamodb://shop-labels?region=us-east-1", shown="dynamodb://there")
        access = AwsAccess(endpoint_url=deployed.url, access_key="test", secret="test")
        tables = Tables({"labels": Table(name="labels", url=url)}, aws=access)
        try:
            return await (await tables.get("labels")).get("k")
        finally:
            tables.close()

    assert json.loads(asyncio.run(read()) or b"") == {"z": 1.50, "a": [1e-200]}


def test_a_scan_goes_on_over_pages(deployed: EmulatedAws) -> None:
    table = deployed_services.table("labels")
    for number in range(6):
        table.put(str(number), {"text": "x" * 300_000})
    assert sorted(key for key, _ in table.scan()) == [str(number) for number in range(6)]


@pytest.mark.parametrize(
    ("key", "item", "error", "said"),
    [
        ("", {}, deployed_services.ServiceError, "the key has 0 bytes"),
        ("k" * 2049, {}, deployed_services.ServiceError, "the key has 2049 bytes"),
        ("\ud800", {}, deployed_services.ServiceError, "not Unicode"),
        (7, {}, TypeError, "a key must be a str, not a int"),
        ("k", [], TypeError, "an item must be a dict, not a list"),
        ("k", {"n": float("nan")}, deployed_services.ServiceError, "not JSON"),
        ("k", {"text": "x" * 500_000}, deployed_services.ServiceError, "at most 409600 are allowed"),
    ],
)
def test_items_and_keys_are_refused_as_in_thawd(key: str, item: dict[str, object], error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        deployed_services.table("labels").put(key, item)


def test_objects_are_written_and_read_and_missing_ones_are_not_found() -> None:
    bucket = deployed_services.bucket("uploads")
    bucket.write("in/ä b.png", bytearray(b"one"))
    bucket.write("in/ä b.png", b"two")
    assert bucket.read("in/ä b.png") == b"two"
    assert deployed_services.bucket("shop-uploads").read("in/ä b.png") == b"two"  # S3's name, as in events
    with pytest.raises(FileNotFoundError, match="there is no object 'none'"):
        bucket.read("none")
    with pytest.raises(deployed_services.ServiceError, match="has no path; use read and write"):
        bucket.path("in/ä b.png")


def test_a_bucket_with_a_prefix_has_nothing_outside_it() -> None:
    bucket = deployed_services.bucket("part")
    bucket.write("in/a", b"1")
    for key in ("out/a", "in/"):
        with pytest.raises(deployed_services.ServiceError, match="is not below the prefix 'in/'"):
            bucket.read(key)


def test_unknown_stores_and_failures_of_aws_are_errors_that_say_why() -> None:
    with pytest.raises(
        deployed_services.ServiceError, match=r"there is no table 'other'.*there are: gone, labels, theirs"
    ):
        deployed_services.table("other")
    with pytest.raises(
        deployed_services.ServiceError, match=r"table gone: gone in DynamoDB failed: .*ResourceNotFound"
    ):
        deployed_services.table("gone").get("k")
    with pytest.raises(deployed_services.ServiceError, match=r"bucket gone: gone in S3 failed: .*NoSuchBucket"):
        deployed_services.bucket("gone").read("k")


def test_threads_share_the_clients() -> None:
    def work(number: int) -> None:
        deployed_services.table("labels").put(str(number), {"n": number})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(dict(deployed_services.table("labels").scan())) == 8
