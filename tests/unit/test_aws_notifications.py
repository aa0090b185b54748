"""Notifications of the emulator's buckets: what is configured is on disk, even if another request changes them
meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from thawd.gateway.aws import bucket_notifications as aws_notifications
from thawd.gateway.aws.bucket_notifications import BucketNotifications
from thawd.gateway.s3 import intake
from thawd.gateway.s3.xml import S3Error

DOCUMENT = b"<NotificationConfiguration/>"


async def put(notifications: BucketNotifications, bucket: str) -> None:
    """Send a PutBucketNotificationConfiguration that the emulator accepts."""
    scope: dict[str, Any] = {
        "method": "PUT",
        "path": f"/{bucket}",
        "raw_path": f"/{bucket}".encode(),
        "query_string": b"notification",
        "headers": [(b"content-length", str(len(DOCUMENT)).encode())],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": DOCUMENT, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        pass

    async def pass_on(scope: Any, body: bytes, send: Any) -> int:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        return 200

    assert await notifications.serve(scope, receive, send, pass_on)


def test_two_that_are_configured_at_once_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "notifications.json"
    replace = aws_notifications._replace
    begun, let_go = threading.Event(), threading.Event()

    def slow(path: Path, content: bytes) -> None:
        if not begun.is_set():
            begun.set()
            assert let_go.wait(60)
        replace(path, content)

    monkeypatch.setattr(aws_notifications, "_replace", slow)
    told: list[str] = []
    unused: Any = None
    notifications = BucketNotifications(accept=unused, find=unused, encode=unused, complain=told.append)
    notifications.keep_in(file)

    async def put_both() -> None:
        first = asyncio.create_task(put(notifications, "first"))
        assert await asyncio.to_thread(begun.wait, 60)
        second = asyncio.create_task(put(notifications, "second"))
        # The second one waits for the first. Otherwise it would be done within this time.
        await asyncio.wait([second], timeout=0.2)
        let_go.set()
        await asyncio.gather(first, second)

    asyncio.run(put_both())
    assert set(msgspec.json.decode(file.read_bytes())) == {"first", "second"}
    assert not told


WITH_ENTITY = '<!DOCTYPE a [<!ENTITY b "c">]><NotificationConfiguration>&b;</NotificationConfiguration>'


@pytest.mark.parametrize(
    "parse", [aws_notifications.parse, lambda body: intake._parse(body, "NotificationConfiguration")]
)
@pytest.mark.parametrize("head", ["", '<?xml version="1.0" encoding="ENCODING"?>'])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7"])
def test_a_document_type_is_refused_in_every_encoding(
    encoding: str, head: str, parse: Callable[[bytes], object]
) -> None:
    declared = encoding.removesuffix("-sig")
    with pytest.raises(S3Error) as refused:
        parse((head.replace("ENCODING", declared) + WITH_ENTITY).encode(encoding))
    assert (refused.value.status, refused.value.code) == (400, "MalformedXML")


def test_a_document_that_is_not_utf_8_is_refused() -> None:
    for encoding in ("utf-16", "latin-1"):
        document = '<?xml version="1.0"?><NotificationConfiguration>é</NotificationConfiguration>'.encode(encoding)
        with pytest.raises(S3Error, match="send XML in UTF-8"):
            aws_notifications.parse(document)


def test_an_empty_document_has_no_rules() -> None:
    assert aws_notifications.parse(b"") == ([], b"<NotificationConfiguration />")
