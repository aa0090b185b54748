"""Claims about buckets elsewhere: what is stored and read, and that every change of an object is one event."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import obstore.store
import pytest

from tests.integration.conftest import Project, eventually
from tests.integration.emulated import EmulatedAws
from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, StoreError
from thawd.resources import Notification, RemoteBucket, StoreUrl
from thawd.sources.buckets.remote import RemoteBucketWatcher
from thawd.sources.buckets.remote_stores import WatcherStores
from thawd.stores.events.queue import EventQueue
from thawd.stores.objects.catalog import ObjectCatalog
from thawd.stores.objects.listings import Listings
from thawd.stores.objects.remote import BucketStore, ObjectWriter
from thawd.stores.schema import open_state

ALL = (Notification(function="f", events=("s3:ObjectCreated:*", "s3:ObjectRemoved:*")),)
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("aws_credentials")


class There:
    """A bucket in the emulated S3, as people and other programs use it."""

    def __init__(self, aws: EmulatedAws, name: str) -> None:
        self.name = name
        self.url = aws.url
        self.s3 = aws.client("s3")
        self.s3.create_bucket(Bucket=name)

    def put(self, key: str, body: bytes = b"x") -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=body)

    def get(self, key: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def stored(self) -> set[str]:
        return {entry["Key"] for entry in self.s3.list_objects_v2(Bucket=self.name).get("Contents", [])}

    def delete(self, key: str) -> None:
        self.s3.delete_object(Bucket=self.name, Key=key)


@pytest.fixture
def there(aws: EmulatedAws, request: pytest.FixtureRequest) -> There:
    """A bucket of the test's own."""
    return There(aws, f"b{abs(hash(request.node.name)) % 10**12}-there")


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


@pytest.fixture(params=["s3", "memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path, there: There) -> Iterator[BucketStore]:
    """A bucket in one of obstore's stores."""
    made = {"memory": obstore.store.MemoryStore, "file": lambda: obstore.store.LocalStore(tmp_path)}
    own = made[request.param]() if request.param in made else None
    found = BucketStore(bucket_of(there), store=own)
    yield found
    found.close()


def test_objects_are_stored_below_the_prefix_and_read_by_their_complete_keys(store: BucketStore) -> None:
    writer: ObjectWriter = store

    async def scenario() -> None:
        await writer.put("ü ?&=+%20#.json", b"one")
        await writer.put("ü ?&=+%20#.json", b"two")
        assert await store.read("in/ü ?&=+%20#.json", limit_bytes=3) == b"two"
        await store.write("in/a/b.bin", bytes(20 * MIB))
        assert len(await store.read("in/a/b.bin", limit_bytes=64 * MIB)) == 20 * MIB
        with pytest.raises(InvalidParameterValueException, match=r"has 20971520 bytes.*at most 100"):
            await store.read("in/a/b.bin", limit_bytes=100)
        with pytest.raises(ResourceNotFoundException, match="there is no such object"):
            await store.read("in/none", limit_bytes=100)
        listing = store.listing()
        found = []
        while page := await store.next_page(listing):
            found += [(entry.key, entry.size) for entry in page]
        assert sorted(found) == [("in/a/b.bin", 20 * MIB), ("in/ü ?&=+%20#.json", 3)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("other/x", "is not below the prefix 'in/'"),
        ("in/", "is not below the prefix"),
        ("in/x/", "begins or ends with a slash"),
        ("in/a//b", "cannot be used"),
        ("in/../b", "cannot be used"),
    ],
)
def test_keys_that_are_not_the_buckets_are_refused(store: BucketStore, key: str, said: str) -> None:
    with pytest.raises(InvalidParameterValueException, match=said) as caught:
        asyncio.run(store.write(key, b"x"))
    assert not caught.value.retryable
    with pytest.raises(InvalidParameterValueException):
        asyncio.run(store.read(key, limit_bytes=10))


def test_a_store_that_is_down_is_told_in_one_line_as_something_that_may_pass(tmp_path: Path) -> None:
    with EmulatedAws() as gone:
        bucket = bucket_of(There(gone, "gone"))
    store = BucketStore(bucket)
    with pytest.raises(StoreError, match="bucket photos: s3://gone/in/ failed") as caught:
        asyncio.run(store.put("x", b"x"))
    assert caught.value.retryable
    assert "\n" not in str(caught.value)
    store.close()


_S3_LISTING = """<?xml version="1.0"?><ListBucketResult><Contents><Key>in/a.png</Key><ETag>"e1"</ETag>
<LastModified>2026-11-20T12:00:00.000Z</LastModified><Size>3</Size></Contents></ListBucketResult>"""
_AZURE_LISTING = """<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="there"><Blobs><Blob>
<Name>in/a.png</Name><Properties><Last-Modified>Fri, 20 Nov 2026 12:00:00 GMT</Last-Modified><Etag>e1</Etag>
<Content-Length>3</Content-Length><Content-Type>x</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>
</Blobs><NextMarker/></EnumerationResults>"""


@pytest.mark.parametrize(
    ("scheme", "listing", "asked"),
    [
        ("gs", _S3_LISTING, "/there?list-type=2&prefix=in%2F"),
        ("s3", _S3_LISTING, "/there?list-type=2&prefix=in%2F"),
        ("az", _AZURE_LISTING, "/there?restype=container&comp=list&prefix=in%2F"),
    ],
)
def test_each_kind_of_store_is_asked_in_its_own_language_where_the_url_says(
    scheme: str, listing: str, asked: str
) -> None:
    paths = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(listing)))
            self.end_headers()
            self.wfile.write(listing.encode())

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        parameters = {"endpoint": f"http://127.0.0.1:{server.server_port}", "anonymous": "true", "account": "mine"}
        url = StoreUrl(text=f"{scheme}://there/in", shown=f"{scheme}://there/in")
        store = BucketStore(RemoteBucket(name="photos", url=url, bucket="there", prefix="in/", parameters=parameters))
        try:
            (found,) = asyncio.run(store.next_page(store.listing()))
        finally:
            store.close()
            server.shutdown()
            serving.join()
    at_ns = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()) * 10**9
    assert found == ("in/a.png", 3, "e1", at_ns)
    assert paths == [asked]


class Watched:
    """A watcher of a bucket with a state file, in the test's hands: it looks when told."""

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
        """The records of the events since the last time."""
        found = []
        while events := await self.queue.lease("f", limit=500):
            await self.queue.done([event.id for event in events])
            found += [json.loads(event.payload)["Records"][0] for event in events]
        return found

    async def look(self) -> list[str]:
        """One listing; the events that came of it."""
        await self.watcher.look()
        return sorted(f"{r['eventName']} {r['s3']['object']['key']}" for r in await self.records())

    def close(self) -> None:
        self.store.close()
        self.db.close()


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
        # And after a restart what changed meanwhile
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
        # Given a first listing that breaks off, and a start after it
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
    """S3 tells times of objects in whole seconds."""
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
            assert ["boto3 lists it" in line for line in here.log] == [True]
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
            assert "objects wait to be recorded: as many events as server.max_queued" in here.log[0]
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
from tests.integration.test_remote_buckets import ALL, Watched
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


CODE = """
import json, urllib.parse, thawd

def handler(event, context):
    record = event["Records"][0]
    key = urllib.parse.unquote_plus(record["s3"]["object"]["key"])
    data = thawd.bucket("photos").read(key)
    return {"size": len(data), "bucket": record["s3"]["bucket"]["name"], "region": record["awsRegion"]}

def probe(event, context):
    bucket = thawd.bucket("photos")
    bucket.write(event["key"], event["text"].encode())
    answer = [bucket.url, bucket.read(event["key"]).decode()]
    for work in (lambda: bucket.read("in/none"), lambda: bucket.path("in/x"), lambda: bucket.read("other"),
                 lambda: thawd.bucket("nowhere")):
        try:
            work()
        except Exception as error:
            answer.append(type(error).__name__ + ": " + str(error))
    return answer
"""


def serve(project: Project, there: There, more: str = "") -> None:
    project.code(CODE)
    project.config(
        f"""
        [functions.f]
        handler = "app.handler"
        on_success = "table:sizes"

        [functions.probe]
        handler = "app.probe"

        [buckets.photos]
        url = "s3://{there.name}/in?endpoint={there.url}&region=eu-west-1"
        poll_s = 1
        notify = [{{ function = "f", suffix = ".png" }}]
        {more}

        [tables.sizes]
        """
    )


def rows(project: Project) -> dict[str, dict[str, Any]]:
    """The table of sizes, by key."""
    return project.rows("sizes")


def test_objects_elsewhere_invoke_functions_which_read_and_write_them(project: Project, there: There) -> None:
    serve(project, there)
    there.put("in/a.png", b"hello")
    with project.up() as running:
        eventually(lambda: "in/a.png" in rows(project), what="the row")
        assert rows(project)["in/a.png"] == {
            "_key": "in/a.png",
            "size": 5,
            "bucket": there.name,
            "region": "eu-west-1",
        }
        there.put("in/ü +.png", b"12")
        there.put("in/no.txt", b"12")
        eventually(lambda: len(rows(project)) == 2, what="the second row")
        assert rows(project)["in/ü +.png"]["size"] == 2
        answer, error = running.invoke("probe", {"key": "in/written.txt", "text": "tëxt"})
        assert error is None
        assert there.get("in/written.txt").decode() == "tëxt"
        assert answer[:2] == [f"s3://{there.name}/in?endpoint={there.url}&region=eu-west-1", "tëxt"]
        kinds = [text.partition(":")[0] for text in answer[2:]]
        assert kinds == ["FileNotFoundError", "ServiceError", "ServiceError", "ServiceError"], answer
        assert "has no path; use read and write" in answer[3]
        assert "there is no bucket 'nowhere'" in answer[5]
        # The S3 interface is for folders
        with pytest.raises(running.s3().exceptions.ClientError, match="speak to that store itself"):
            running.s3().put_object(Bucket="photos", Key="x", Body=b"")
    assert "1 bucket" in project.command("check").stdout


def test_outcomes_go_to_a_bucket_elsewhere_and_wait_while_it_is_away(project: Project, there: There) -> None:
    serve(project, there)
    text = (project.root / "thawd.toml").read_text()
    away = text.replace(there.url, "http://127.0.0.1:1")
    declared = 'on_success = "bucket:photos"'
    for variant in (away, text):
        assert variant.count('handler = "app.probe"') == 1
        (project.root / "thawd.toml").write_text(
            variant.replace('handler = "app.probe"', f'handler = "app.plain"\n        {declared}')
        )
        if variant is away:
            project.code(CODE + "\ndef plain(event, context):\n    return event\n")
            with project.up() as running:
                answer = running.client().invoke(FunctionName="probe", InvocationType="Event", Payload=b'{"n": 1}')
                request_id = answer["ResponseMetadata"]["RequestId"]
                eventually(
                    lambda: json.loads(project.command("queue", "--json").stdout)["functions"]["probe"]["delivering"],
                    what="the outcome that waits",
                )
        else:
            with project.up():
                key = f"in/{request_id}.json"
                eventually(lambda key=key: key in there.stored(), what="the object")  # type: ignore[misc]
                assert json.loads(there.get(key))["responsePayload"] == {"n": 1}


def test_with_emulated_aws_a_bucket_is_the_emulated_one_of_that_name(project: Project) -> None:
    project.code(CODE)
    project.config(
        """
        [functions.f]
        handler = "app.handler"
        on_success = "table:sizes"

        [buckets.photos]
        url = "s3://photos"
        poll_s = 1
        notify = [{ function = "f" }]

        [tables.sizes]
        """
    )
    with project.up("--aws") as running:
        running.s3().create_bucket(Bucket="photos")
        running.s3().put_object(Bucket="photos", Key="a.png", Body=b"12345")
        eventually(lambda: "a.png" in rows(project), what="the row")
        assert rows(project)["a.png"]["size"] == 5

        def told() -> int:
            return sum("is listed again" in line or "failed" in line for line in running.output)

        eventually(lambda: told() in (0, 2), what="the end of the trouble, if any was told")


def test_a_server_killed_in_the_middle_of_listings_loses_and_doubles_nothing(project: Project, there: There) -> None:
    # Given many objects, and a server that dies again and again while it lists and processes them
    serve(project, there)
    keys = {f"in/{number:04d}.png" for number in range(150)}
    for key in sorted(keys):
        there.put(key)
    for expected in (1, 40, 90):
        with project.up() as running:
            eventually(lambda least=expected: len(rows(project)) >= least, what="some rows")
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
    with project.up():
        eventually(lambda: len(rows(project)) == len(keys), what="all rows")
    assert set(rows(project)) == keys


def test_a_missing_library_is_told_at_the_start_with_its_extra(project: Project) -> None:
    project.config("[buckets.photos]\nurl = 's3://photos'")
    script = (
        "import importlib.util; found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'obstore' else found(name, *a)\n"
        "from thawd.cli import program as cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script, "up"], cwd=project.root, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'thawd[buckets]'" in done.stderr
