"""Runs the watchers of all remote buckets that invoke functions.

A bucket with the option `notifications` is watched through its SQS queue, any other one by listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any

from thawd.resources import RemoteBucket
from thawd.sources.aws_calls import Endpoint
from thawd.sources.buckets.remote import RemoteBucketWatcher
from thawd.sources.buckets.remote_notifications import NotifiedBucketWatcher
from thawd.sources.buckets.remote_stores import WatcherStores
from thawd.stores.objects.remote import BucketStores
from thawd.telemetry.metrics import Metrics

Watcher = RemoteBucketWatcher | NotifiedBucketWatcher


class RemoteSources:
    """Watches all remote buckets.

    Args:
        buckets: the buckets; those that notify no function are not watched.
        stores: the stores that read the buckets.
        watcher_stores: the stores that watchers record into.
        sqs: endpoint URL of SQS; None: as configured by AWS's environment variables and files.
        log: takes lines for the operator.
        wake: called with the names of functions that have new events in the asynchronous queue.
    """

    def __init__(
        self,
        buckets: Iterable[RemoteBucket],
        stores: BucketStores,
        watcher_stores: WatcherStores,
        *,
        sqs: str | None,
        log: Callable[[str], None],
        wake: Callable[[set[str]], None],
    ) -> None:
        self._watchers: dict[str, Watcher] = {}
        for bucket in buckets:
            store = stores.get(bucket.name)
            if not bucket.notify or store is None:
                continue
            name = f"bucket:{bucket.name}"
            if bucket.notifications is None:
                self._watchers[name] = RemoteBucketWatcher(
                    bucket, store, watcher_stores=watcher_stores, log=log, on_events=wake
                )
            else:
                endpoint = None if sqs is None else Endpoint(sqs)
                self._watchers[name] = NotifiedBucketWatcher(
                    bucket, watcher_stores=watcher_stores, endpoint=endpoint, log=log, on_events=wake
                )

    @property
    def names(self) -> list[str]:
        """The names of the watchers, as ``thawd source`` shows them: ``bucket:`` and the bucket's name."""
        return list(self._watchers)

    async def run(self, *, paused: Collection[str]) -> None:
        """Watch until cancelled. Watchers named in `paused` start paused, and wait to be resumed."""
        async with asyncio.TaskGroup() as tasks:
            for name, watcher in self._watchers.items():
                if name in paused:
                    watcher.pause()
                tasks.create_task(watcher.run())

    def enable(self, name: str, *, enabled: bool) -> dict[str, Any]:
        """Resume or pause the watcher called `name`, and return its status."""
        watcher = self._watchers[name]
        if enabled:
            watcher.resume()
        else:
            watcher.pause()
        return watcher.status()

    def status(self) -> list[dict[str, Any]]:
        """Return the status of each watcher."""
        return [watcher.status() for watcher in self._watchers.values()]

    def measure(self, metrics: Metrics) -> None:
        """Add the watchers' figures to `metrics`."""
        for name, watcher in self._watchers.items():
            shown = watcher.status()
            figures: dict[str, float] = {
                "source_events": shown["events"],
                "source_enabled": shown["state"] == "Enabled",
                "source_age_seconds": shown["oldest_s"] or 0.0,
            }
            if shown["waiting"] is not None:
                figures["source_waiting"] = shown["waiting"]
            metrics.sources[name, shown["function"]] = figures
