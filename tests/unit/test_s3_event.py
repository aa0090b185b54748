"""`thawd.sources.buckets.s3_event`: the JSON is S3's, and a notification gets the events it is configured for."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import unquote_plus, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.resources import Notification
from thawd.sources.buckets.notification_rules import functions_for, wants
from thawd.sources.buckets.s3_event import CREATED, REMOVED, ObjectEvent, encode, row_key


def event(key: bytes = b"cats/a b+c.png", name: str = CREATED, **changes: object) -> ObjectEvent:
    fields: dict[str, object] = {
        "name": name,
        "bucket": "uploads",
        "key": key,
        "size": 1024,
        "etag": "d41d8cd98f00b204e9800998ecf8427e",
        "sequencer": 0x18D3_0000_0000_00AB,
        "at_s": 1_790_000_000.1234,
        "request_id": "3d1c59a4-4f5e-4a4b-8f8d-0c6f0d0c1a2b",
        **changes,
    }
    return ObjectEvent(**fields)  # type: ignore[arg-type]


def test_a_created_object_is_told_in_lambdas_json() -> None:
    document = json.loads(encode(event(), configuration_id="classify"))
    (record,) = document["Records"]
    assert list(record) == [
        "eventVersion",
        "eventSource",
        "awsRegion",
        "eventTime",
        "eventName",
        "userIdentity",
        "requestParameters",
        "responseElements",
        "s3",
    ]
    assert record["eventVersion"] == "2.1"
    assert record["eventSource"] == "aws:s3"
    assert record["awsRegion"] == "us-east-1"
    assert record["eventTime"] == "2026-09-21T14:13:20.123Z"
    assert record["eventName"] == "ObjectCreated:Put"
    assert record["userIdentity"]["principalId"]
    assert record["requestParameters"]["sourceIPAddress"] == "127.0.0.1"
    assert re.fullmatch("[0-9A-F]{16}", record["responseElements"]["x-amz-request-id"])
    assert record["responseElements"]["x-amz-id-2"]
    assert record["s3"] == {
        "s3SchemaVersion": "1.0",
        "configurationId": "classify",
        "bucket": {
            "name": "uploads",
            "ownerIdentity": {"principalId": "000000000000"},
            "arn": "arn:aws:s3:::uploads",
        },
        "object": {
            "key": "cats/a+b%2Bc.png",
            "size": 1024,
            "eTag": "d41d8cd98f00b204e9800998ecf8427e",
            "sequencer": "18D30000000000AB",
        },
    }


def test_a_removed_object_has_neither_size_nor_etag() -> None:
    (record,) = json.loads(encode(event(name=REMOVED, size=None, etag=None), configuration_id="f"))["Records"]
    assert record["eventName"] == "ObjectRemoved:Delete"
    assert record["s3"]["object"] == {"key": "cats/a+b%2Bc.png", "sequencer": "18D30000000000AB"}


def test_the_milliseconds_are_there_on_a_whole_second_and_the_time_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        (record,) = json.loads(encode(event(at_s=1_790_000_000.0), configuration_id="f"))["Records"]
    time.tzset()
    assert record["eventTime"] == "2026-09-21T14:13:20.000Z"


@given(st.binary(min_size=1, max_size=50))
def test_any_name_of_a_file_can_be_got_back_from_the_key(key: bytes) -> None:
    (record,) = json.loads(encode(event(key), configuration_id="f"))["Records"]
    sent = record["s3"]["object"]["key"]
    assert sent.isascii()
    assert unquote_to_bytes(sent.replace("+", " ")) == key
    assert unquote_plus(sent, errors="surrogateescape").encode("utf-8", "surrogateescape") == key
    assert sent.count("/") == key.count(b"/")


@pytest.mark.parametrize(
    ("pattern", "name", "wanted"),
    [
        ("s3:ObjectCreated:*", CREATED, True),
        ("s3:ObjectCreated:Put", CREATED, True),
        ("s3:ObjectCreated:Copy", CREATED, False),
        ("s3:ObjectCreated:*", REMOVED, False),
        ("s3:ObjectRemoved:*", REMOVED, True),
        ("s3:ObjectRemoved:Delete", REMOVED, True),
        ("s3:ObjectRemoved:DeleteMarkerCreated", REMOVED, False),
    ],
)
def test_event_types_match_as_in_s3(pattern: str, name: str, wanted: bool) -> None:
    assert wants(Notification(function="f", events=(pattern,)), name, b"a") is wanted


def test_a_function_gets_an_event_once_however_many_of_its_notifications_match() -> None:
    notifications = (
        Notification(function="a", prefix="in/"),
        Notification(function="b", suffix=".png"),
        Notification(function="a", suffix=".png", events=("s3:ObjectCreated:Put", "s3:ObjectCreated:*")),
        Notification(function="c", events=("s3:ObjectRemoved:*",)),
        Notification(function="d", prefix="in/", suffix="n/"),
        Notification(function="ü", prefix="ü"),
    )
    assert functions_for(notifications, key=b"in/x.png", event_name=CREATED) == ["a", "b"]
    assert functions_for(notifications, key=b"in/x.png", event_name=REMOVED) == ["c"]
    assert functions_for(notifications, key=b"x.jpg", event_name=CREATED) == []
    assert functions_for(notifications, key="ü.jpg".encode(), event_name=CREATED) == ["ü"]


def test_a_row_key_is_text_whatever_the_file_is_called() -> None:
    assert row_key("a/ü b.png".encode()) == "a/ü b.png"
    assert row_key(b"a/\xff\xfe.png") == "a/%FF%FE.png"
    assert row_key(b"50%.png") == "50%.png"


@given(st.binary(min_size=1, max_size=100))
def test_every_row_key_can_be_encoded(key: bytes) -> None:
    assert row_key(key).encode()
