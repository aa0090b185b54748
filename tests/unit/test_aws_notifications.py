"""Notifications of the emulator's buckets: what is configured is on disk, even if another request changes them
meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from thawd.gateway.aws import bucket_notifications as aws_notifications
from thawd.gateway.aws.bucket_notifications import BucketNotifications

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
