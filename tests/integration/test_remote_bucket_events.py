"""`thawd.sources.buckets.remote`: every change of an object in a remote bucket causes one event."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import obstore.store
import pytest

from tests.integration.emulated import EmulatedAws, There
from tests.integration.remote_buckets import Watched, bucket_of
from thawd.errors import StoreError
from thawd.resources import RemoteBucket
from thawd.stores.objects.remote import BucketStore

pytestmark = pytest.mark.usefixtures("aws_credentials")


@contextlib.asynccontextmanager
async def watched(folder: Path, bucket: RemoteBucket) -> AsyncIterator[Watched]:
    one = Watched(folder, bucket)
    try:
        yield one
    finally:
        one.close()


def test_every_change_is_one_event_in_s3s_format(tmp_path: Path, there: There) -> None:
    for key in ("in/a.png", "in/ü +.png", "outside.png", "in-not.png"):
        there.put(key, b"hello")
    bucket = bucket_of(there)

    async def scenario() -> None:
        async with watched(tmp_path, bucket) as here:
            await here.watcher.look()
            assert here.woken == [{"f"}]
            records = {record["s3"]["object"]["key"]: record for record in await here.records()}
            assert set(records) == {"in/a.png", "in/%C3%BC+%2B.png"}
            record = records["in/a.png"]
            assert record["awsRegion"] == "eu-west-1"
            assert record["eventName"] == "ObjectCreated:Put"
            assert record["s3"]["bucket"]["name"] == there.name
            assert record["s3"]["bucket"]["arn"] == f"arn:aws:s3:::{there.name}"
            assert record["s3"]["object"]["size"] == 5
            assert record["s3"]["object"]["eTag"] == "5d41402abc4b2a76b9719d911017c592"
            assert "versionId" not in record["s3"]["object"]
            assert await here.look() == []
            there.put("in/a.png", b"other")
            there.put("in/new.png")
            there.delete("in/ü +.png")
            assert await here.look() == [
                "ObjectCreated:Put in/a.png",
                "ObjectCreated:Put in/new.png",
                "ObjectRemoved:Delete in/%C3%BC+%2B.png",
            ]
        # And after a restart the changes made meanwhile
        there.delete("in/a.png")
        there.put("in/late.png")
        async with watched(tmp_path, bucket) as here:
            assert await here.look() == ["ObjectCreated:Put in/late.png", "ObjectRemoved:Delete in/a.png"]
            status = here.watcher.status()
            assert (status["objects"], status["last_result"], status["state"]) == (2, "OK", "Enabled")
            assert 0 <= status["oldest_s"] < 60

    asyncio.run(scenario())


def test_objects_from_before_the_first_listing_are_passed_over_when_asked_for(tmp_path: Path, there: There) -> None:
    there.put("in/old.png")
    bucket = bucket_of(there, existing="skip")

    async def scenario() -> None:
        # Given a first listing that fails, and a later start
        async with watched(tmp_path, bucket) as here:
            here.store.close()
            with pytest.raises(StoreError):
                await here.watcher.look()
        await _next_second()
        there.put("in/new.png")
        async with watched(tmp_path, bucket) as here:
            assert await here.look() == ["ObjectCreated:Put in/new.png"]
            there.put("in/old.png", b"changed")
            assert await here.look() == ["ObjectCreated:Put in/old.png"]

    asyncio.run(scenario())


async def _next_second() -> None:
    """Wait for the next second: S3 reports the times of objects in whole seconds."""
    begun = int(time.time())
    while int(time.time()) <= begun:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.02)


def test_markers_of_folders_are_no_objects(tmp_path: Path, there: There) -> None:
    there.put("in/folder/", b"")
    there.put("in/empty", b"")

    async def scenario() -> None:
        async with watched(tmp_path, bucket_of(there)) as here:
            assert await here.look() == ["ObjectCreated:Put in/empty"]
            assert await here.look() == []

    asyncio.run(scenario())


def test_a_key_that_obstore_cannot_hold_does_not_hide_the_others(tmp_path: Path, there: There) -> None:
    keys = ["in/a.png", "in/b//c.png", "in/z.png"]
    for key in keys:
        there.put(key)

    async def scenario() -> None:
        async with watched(tmp_path, bucket_of(there)) as here:
            watching = asyncio.create_task(here.watcher.run())
            await here.watcher.first_listing_done.wait()
            watching.cancel()
            assert Counter(r["s3"]["object"]["key"] for r in await here.records()) == Counter(keys)
            assert ["boto3 lists the bucket" in line for line in here.log] == [True]
            there.delete("in/b//c.png")
            assert await here.look() == ["ObjectRemoved:Delete in/b//c.png"]

    asyncio.run(scenario())


def test_listings_of_many_pages_miss_nothing(tmp_path: Path, there: There) -> None:
    store = obstore.store.MemoryStore()
    for number in range(3500):
        obstore.put(store, f"in/{number:05d}", b"x")
    bucket = bucket_of(there)

    async def scenario() -> None:
        here = Watched(tmp_path, bucket, BucketStore(bucket, store=store))
        assert len(await here.look()) == 3500
        for number in range(0, 3500, 2):
            obstore.delete(store, f"in/{number:05d}")
        obstore.put(store, "in/00000b", b"x")
        assert Counter(line.split()[0] for line in await here.look()) == {
            "ObjectRemoved:Delete": 1750,
            "ObjectCreated:Put": 1,
        }
        here.close()

    asyncio.run(scenario())


def test_a_bucket_that_cannot_be_listed_is_told_once_and_nothing_counts_as_removed(tmp_path: Path) -> None:
    with EmulatedAws() as aws:
        there = There(aws, "photos-there")
        there.put("in/a.png")
        bucket = bucket_of(there, poll_s=0.01)

        async def scenario() -> None:
            async with watched(tmp_path, bucket) as here:
                assert await here.look() == ["ObjectCreated:Put in/a.png"]
                there.s3.delete_object(Bucket=there.name, Key="in/a.png")
                there.s3.delete_bucket(Bucket=there.name)
                watching = asyncio.create_task(here.watcher.run())
                while not here.log:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert "NoSuchBucket" in here.log[0] or "404" in here.log[0]
                assert await here.records() == []
                assert here.watcher.status()["last_result"].startswith("PROBLEM: bucket photos")
                there.s3.create_bucket(Bucket=there.name)
                while len(here.log) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert "is listed again" in here.log[1]
                records = await here.records()
                assert [record["eventName"] for record in records] == ["ObjectRemoved:Delete"]
                watching.cancel()

        asyncio.run(scenario())


def test_a_listing_waits_while_the_queue_is_full(tmp_path: Path, there: There) -> None:
    there.put("in/a.png")

    async def scenario() -> None:
        async with watched(tmp_path, bucket_of(there, poll_s=0.01)) as here:
            here.is_full = True
            watching = asyncio.create_task(here.watcher.run())
            while not here.log:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert "objects cannot be recorded yet: too many events wait" in here.log[0]
            assert await here.records() == []
            here.is_full = False
            await here.watcher.first_listing_done.wait()
            watching.cancel()
            assert len(await here.records()) == 1

    asyncio.run(scenario())


def test_a_watcher_that_is_paused_finds_afterwards_what_changed(tmp_path: Path, there: There) -> None:
    async def scenario() -> None:
        async with watched(tmp_path, bucket_of(there, poll_s=0.01)) as here:
            here.watcher.pause()
            assert here.watcher.status()["state"] == "Disabled"
            watching = asyncio.create_task(here.watcher.run())
            there.put("in/a.png")
            await asyncio.sleep(0)
            assert not here.watcher.first_listing_done.is_set()
            here.watcher.resume()
            await here.watcher.first_listing_done.wait()
            watching.cancel()
            assert len(await here.records()) == 1

    asyncio.run(scenario())


_MEASURED = """
import asyncio, sys
from pathlib import Path
from tests.integration.remote_buckets import ALL, Watched
from thawd.resources import RemoteBucket, StoreUrl
from thawd.stores.objects.remote import BucketStore, RemoteObject

class Many(BucketStore):
    def listing(self):
        for first in range(0, int(sys.argv[2]), 1000):
            yield [RemoteObject(f"in/{number:08d}.png", 1, "e", 1) for number in range(first, first + 1000)]

bucket = RemoteBucket(name="photos", url=StoreUrl(text="s3://b", shown="s3://b"), bucket="b", notify=ALL)

async def main():
    here = Watched(Path(sys.argv[1]), bucket, Many(bucket))
    await here.watcher.look()
    assert here.watcher.status()["objects"] == int(sys.argv[2])
    assert (await here.queue.depth())["f"].queued == int(sys.argv[2])
    here.close()

asyncio.run(main())
# Not getrusage, whose peak is also that of who started us
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def test_memory_does_not_grow_with_the_bucket(tmp_path: Path) -> None:
    def peak_mib(count: int) -> float:
        folder = tmp_path / str(count)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(folder), str(count)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        return int(done.stdout) / 1024

    few, many = peak_mib(5_000), peak_mib(50_000)
    assert many - few < 12, (few, many)
