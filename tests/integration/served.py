"""Buckets served over HTTP as by the server, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from botocore.exceptions import ClientError

from tests.clients import client_of
from thawd.gateway.http_server.limits import ConnectionLimits
from thawd.gateway.s3.endpoint import ObjectApi
from thawd.resources import Bucket, Notification
from thawd.server.web import configured
from thawd.sources.buckets.watcher import BucketWatcher, install_lease_signal_handler
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.objects.catalog import ObjectCatalog
from thawd.stores.schema import open_state

install_lease_signal_handler()
ALL = (Notification(function="f", events=("s3:ObjectCreated:*", "s3:ObjectRemoved:*")),)


class Served:
    """Buckets served by a real uvicorn in a thread of this process, and watched as by the server."""

    def __init__(self, folder: Path, *, limits: ConnectionLimits | None = None) -> None:
        self.folder = folder
        self.port = 0
        self.log: list[str] = []
        self.api: ObjectApi
        self._limits = limits
        self._state = folder / "thawd.db"
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(300)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _main(self) -> None:
        try:
            with contextlib.closing(self._loop):
                self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        buckets = {name: Bucket(name=name, path=self.folder / name, notify=ALL) for name in ("uploads", "other-bucket")}
        self.db = open_state(self._state)
        watchers = {
            name: BucketWatcher(
                bucket, objects=ObjectCatalog(self.db), log=self.log.append, on_events=lambda _functions: None
            )
            for name, bucket in buckets.items()
        }
        self.api = ObjectApi(buckets, watchers)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            self.port = listening.getsockname()[1]
            server = configured(self.api, self._limits, complain=self.log.append)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(watcher.run()) for watcher in watchers.values()]
                for watcher in watchers.values():
                    await watcher.initial_scan_done.wait()
                serving = group.create_task(server.serve(sockets=[listening]))
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.01)
                self._ready.set()
                await self._stop.wait()
                server.stop()
                await serving
                for task in tasks:
                    task.cancel()
        self.db.close()

    def client(self) -> Any:
        return client_of(f"http://127.0.0.1:{self.port}", "s3")

    @contextlib.contextmanager
    def empty_client(self) -> Iterator[Any]:
        """A client, and the bucket ``uploads`` without objects or events."""
        client = self.client()
        for entry in client.list_objects_v2(Bucket="uploads").get("Contents", []):
            client.delete_object(Bucket="uploads", Key=entry["Key"])
        self.events()
        yield client
        client.close()

    def events(self) -> Counter[str]:
        """Return all events so far, by event name and by the key as it was sent."""

        async def take() -> Counter[str]:
            queue = EventQueue(self.db)
            found: Counter[str] = Counter()
            while events := await queue.lease("f", limit=500):
                await queue.done([event.id for event in events])
                found.update(self._name(event.payload) for event in events)
            return found

        return asyncio.run(take())

    @staticmethod
    def _name(payload: bytes) -> str:
        (record,) = json.loads(payload)["Records"]
        return f"{record['eventName']} {record['s3']['object']['key']}"

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    error: str = caught.value.response["Error"]["Code"]
    return error


def xml_code(body: bytes) -> str | None:
    return ET.fromstring(body).findtext("Code")
