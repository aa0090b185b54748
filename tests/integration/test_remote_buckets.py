"""Remote buckets: what `thawd.stores.objects.remote` stores and reads, in every supported store.

Also a server with a remote bucket: its objects invoke functions, which read and write objects, and outcomes are stored
there.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import obstore.store
import pytest

from tests.integration.conftest import Project, eventually
from tests.integration.emulated import EmulatedAws, There
from tests.integration.remote_buckets import bucket_of, rows
from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, StoreError
from thawd.resources import RemoteBucket, StoreUrl
from thawd.stores.objects.remote import BucketStore, ObjectWriter

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("aws_credentials")


@pytest.fixture(params=["s3", "memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path, there: There) -> Iterator[BucketStore]:
    """A bucket in one of the stores that obstore supports."""
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


def test_objects_elsewhere_invoke_functions_which_read_and_write_them(project: Project, there: There) -> None:
    serve(project, there)
    there.put("in/a.png", b"hello")
    with project.up() as running:
        eventually(lambda: "in/a.png" in rows(project), what="the row")
        assert rows(project)["in/a.png"] == {
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
        # thawd's S3 interface serves only local buckets
        with pytest.raises(running.s3().exceptions.ClientError, match="send requests to that store"):
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
    # Given many objects, and a server that is killed repeatedly while it lists and processes them
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
