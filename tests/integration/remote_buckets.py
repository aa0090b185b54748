"""Remote buckets for tests: their configuration, a watcher of one, and the rows that its events cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.conftest import Project
from tests.integration.emulated import There
from tests.integration.watched import ALL
from thawd.resources import RemoteBucket, StoreUrl
from thawd.sources.buckets.remote import RemoteBucketWatcher
from thawd.sources.buckets.remote_stores import WatcherStores
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.objects.catalog import ObjectCatalog
from thawd.stores.objects.listings import Listings
from thawd.stores.objects.remote import BucketStore
from thawd.stores.schema import open_state


def bucket_of(there: There, *, prefix: str = "in/", **fields: Any) -> RemoteBucket:
    return RemoteBucket(
        name="photos",
        url=StoreUrl(text=f"s3://{there.name}/{prefix}", shown=f"s3://{there.name}/{prefix}"),
        bucket=there.name,
        prefix=prefix,
        region="eu-west-1",
        parameters={"endpoint": there.url},
        notify=ALL,
        **fields,
    )


class Watched:
    """A watcher of a bucket with a state file. It lists the bucket only when the test calls it."""

    def __init__(self, folder: Path, bucket: RemoteBucket, store: BucketStore | None = None) -> None:
        self.db = open_state(folder / "thawd.db")
        self.queue = EventQueue(self.db)
        self.store = store or BucketStore(bucket)
        self.is_full = False
        self.log: list[str] = []
        self.woken: list[set[str]] = []
        self.watcher = RemoteBucketWatcher(
            bucket,
            self.store,
            watcher_stores=WatcherStores(ObjectCatalog(self.db), Listings(self.db), lambda: self.is_full),
            log=self.log.append,
            on_events=self.woken.append,
        )

    async def records(self) -> list[dict[str, Any]]:
        """Return the records of the events since the last call."""
        found = []
        while events := await self.queue.lease("f", limit=500):
            await self.queue.done([event.id for event in events])
            found += [json.loads(event.payload)["Records"][0] for event in events]
        return found

    async def look(self) -> list[str]:
        """List the bucket once and return the resulting events."""
        await self.watcher.look()
        return sorted(f"{r['eventName']} {r['s3']['object']['key']}" for r in await self.records())

    def close(self) -> None:
        self.store.close()
        self.db.close()


def rows(project: Project) -> dict[str, dict[str, Any]]:
    """Return the rows of the table of sizes, by key."""
    return project.rows("sizes")
