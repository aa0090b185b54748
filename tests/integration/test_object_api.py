"""Claims about `thawd.gateway.objects`: boto3 works with it, what is not offered is refused, a PUT is one event."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import hashlib
import http.client
import io
import os
import socket
import subprocess
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import boto3
import pytest
import uvicorn
from botocore.config import Config
from botocore.exceptions import ClientError

from thawd.events.buckets import BucketWatcher, install_lease_signal_handler
from thawd.gateway.objects import ObjectApi
from thawd.resources import Bucket, Notification
from thawd.state.objects import ObjectCatalog
from thawd.state.queue import EventQueue
from thawd.state.schema import open_state

install_lease_signal_handler()
ALL = (Notification(function="f", events=("s3:ObjectCreated:*", "s3:ObjectRemoved:*")),)


class Served:
    """Buckets served by a real uvicorn in a thread of this process, watched as in the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.log: list[str] = []
        self.api: ObjectApi
        self._state = folder / "thawd.db"
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(20)
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
            server = uvicorn.Server(uvicorn.Config(self.api, log_level="warning", lifespan="off"))
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(watcher.run()) for watcher in watchers.values()]
                for watcher in watchers.values():
                    await watcher.initial_scan_done.wait()
                serving = group.create_task(server.serve(sockets=[listening]))
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.01)
                self._ready.set()
                await self._stop.wait()
                server.should_exit = True
                await serving
                for task in tasks:
                    task.cancel()
        self.db.close()

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id="dummy",
            aws_secret_access_key="dummy",
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def events(self) -> Counter[str]:
        """All events so far, by event name and key as sent."""

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
        import json

        (record,) = json.loads(payload)["Records"]
        return f"{record['eventName']} {record['s3']['object']['key']}"

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder)) as running:
        yield running


@pytest.fixture
def s3(served: Served) -> Any:
    """A client, and a bucket without objects and events."""
    client = served.client()
    for entry in client.list_objects_v2(Bucket="uploads").get("Contents", []):
        client.delete_object(Bucket="uploads", Key=entry["Key"])
    served.events()
    yield client
    client.close()


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    error: str = caught.value.response["Error"]["Code"]
    return error


def xml_code(body: bytes) -> str | None:
    return ET.fromstring(body).findtext("Code")


def test_an_object_put_is_got_listed_and_removed_and_each_is_one_event(served: Served, s3: Any) -> None:
    body = os.urandom(3_000_000)
    etag = f'"{hashlib.md5(body).hexdigest()}"'
    assert s3.put_object(Bucket="uploads", Key="a/b/cat.png", Body=body)["ETag"] == etag
    assert served.events() == {"ObjectCreated:Put a/b/cat.png": 1}
    assert (served.folder / "uploads/a/b/cat.png").read_bytes() == body
    got = s3.get_object(Bucket="uploads", Key="a/b/cat.png")
    assert (got["Body"].read(), got["ETag"], got["ContentType"]) == (body, etag, "image/png")
    head = s3.head_object(Bucket="uploads", Key="a/b/cat.png")
    assert (head["ContentLength"], head["ETag"]) == (3_000_000, etag)
    (entry,) = s3.list_objects_v2(Bucket="uploads")["Contents"]
    assert (entry["Key"], entry["Size"], entry["ETag"]) == ("a/b/cat.png", 3_000_000, etag)
    assert abs((entry["LastModified"] - head["LastModified"]).total_seconds()) < 1
    assert s3.delete_object(Bucket="uploads", Key="a/b/cat.png")["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert served.events() == {"ObjectRemoved:Delete a/b/cat.png": 1}
    assert "Contents" not in s3.list_objects_v2(Bucket="uploads")
    assert s3.delete_object(Bucket="uploads", Key="a/b/cat.png")["ResponseMetadata"]["HTTPStatusCode"] == 204
    assert served.events() == {}


def test_every_put_is_one_event_also_of_the_same_content_and_all_at_once(served: Served, s3: Any) -> None:
    for i in range(10):
        s3.put_object(Bucket="uploads", Key="same", Body=b"same")
        s3.put_object(Bucket="uploads", Key="other", Body=b"%d" % i)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: s3.put_object(Bucket="uploads", Key=f"n{i % 40}", Body=b"x"), range(120)))
        list(pool.map(lambda i: s3.put_object(Bucket="uploads", Key="one", Body=b"%d" % (i % 3)), range(80)))
    # The watcher has had its notices of all these once it has seen a file that came later
    (served.folder / "uploads/later").write_bytes(b"1")
    seen = Counter()  # type: Counter[str]
    while "ObjectCreated:Put later" not in seen:
        seen += served.events()
    assert seen.pop("ObjectCreated:Put later") == 1
    assert seen.pop("ObjectCreated:Put same") == 10
    assert seen.pop("ObjectCreated:Put other") == 10
    assert seen.pop("ObjectCreated:Put one") == 80
    assert seen == {f"ObjectCreated:Put n{i}": 3 for i in range(40)}


@pytest.mark.parametrize(
    "key",
    ["a b+c.png", "ü/猫 😀.png", "50%25.txt", "new\nline", "a&b=c?d#e", "~tilde*'()!", "x" * 250, "a/b/c/d/e/f/g/h"],
)
def test_odd_keys_work(served: Served, s3: Any, key: str) -> None:
    s3.put_object(Bucket="uploads", Key=key, Body=key.encode())
    assert (served.folder / "uploads" / key).read_bytes() == key.encode()
    assert s3.get_object(Bucket="uploads", Key=key)["Body"].read() == key.encode()
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket="uploads")["Contents"]] == [key]
    assert sum(served.events().values()) == 1


def test_a_key_that_is_no_text_works(served: Served, s3: Any) -> None:
    status, _, _ = served.request("PUT", "/uploads/%FF%FE", b"1")
    assert status == 200
    assert (os.fsencode(served.folder) + b"/uploads/\xff\xfe") in [
        os.fsencode(path) for path in (served.folder / "uploads").iterdir()
    ]
    assert served.request("GET", "/uploads/%FF%FE")[2] == b"1"
    body = served.request("GET", "/uploads?list-type=2&encoding-type=url&prefix=%FF")[2]
    assert b"<Key>%FF%FE</Key>" in body
    ET.fromstring(served.request("GET", "/uploads?list-type=2")[2])
    assert served.request("DELETE", "/uploads/%FF%FE")[0] == 204


def test_files_are_uploaded_and_downloaded_as_boto3_does_it(served: Served, s3: Any, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(os.urandom(20_000_000))
    one_put = boto3.s3.transfer.TransferConfig(multipart_threshold=5 * 1024**3)
    s3.upload_file(str(source), "uploads", "model.onnx", Config=one_put)
    # Downloaded in ranges, as it is over the threshold of 8 MiB
    s3.download_file("uploads", "model.onnx", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == source.read_bytes()
    s3.upload_fileobj(io.BytesIO(b"stream"), "uploads", "stream")
    assert s3.get_object(Bucket="uploads", Key="stream")["Body"].read() == b"stream"
    assert served.events() == {"ObjectCreated:Put model.onnx": 1, "ObjectCreated:Put stream": 1}


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_checksums_of_the_sdk_are_checked(served: Served, s3: Any, algorithm: str) -> None:
    s3.put_object(Bucket="uploads", Key="k", Body=b"content", ChecksumAlgorithm=algorithm)
    s3.put_object(Bucket="uploads", Key="k", Body=io.BytesIO(b"content"), ChecksumAlgorithm=algorithm)
    wrong = {"CRC32": b"abcd", "SHA1": b"x" * 20, "SHA256": b"x" * 32}[algorithm]
    with pytest.raises(ClientError) as caught:
        s3.put_object(
            Bucket="uploads",
            Key="wrong",
            Body=b"content",
            **{f"Checksum{algorithm}": base64.b64encode(wrong).decode()},
        )
    assert code_of(caught) == "BadDigest"
    assert not (served.folder / "uploads/wrong").exists()
    assert list((served.folder / "uploads/.thawd-staging").iterdir()) == []


def chunks(body: bytes, trailer: bytes) -> bytes:
    pieces = [b"%x;chunk-signature=%s\r\n%s\r\n" % (len(p), b"0" * 64, p) for p in (body[:5], body[5:])]
    return b"".join(pieces) + b"0\r\n" + trailer + b"\r\n"


def test_chunked_bodies_with_trailers_are_decoded_and_checked(served: Served, s3: Any) -> None:
    body = b"hello world"
    crc = base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))
    headers = {
        "content-encoding": "aws-chunked",
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": "11",
        "x-amz-trailer": "x-amz-checksum-crc32",
    }
    data = chunks(body, b"x-amz-checksum-crc32:" + crc + b"\r\n")
    assert served.request("PUT", "/uploads/c", data, headers)[0] == 200
    assert (served.folder / "uploads/c").read_bytes() == body
    status, _, document = served.request("PUT", "/uploads/d", data.replace(crc, b"AAAAAA=="), headers)
    assert (status, xml_code(document)) == (400, "BadDigest")
    status, _, document = served.request("PUT", "/uploads/d", data[:20], headers)
    assert (status, xml_code(document)) == (400, "IncompleteBody")
    # Without a content length, in chunks of HTTP's own kind
    assert served.request("PUT", "/uploads/e", iter([b"one", b"two"]), {})[0] == 200
    assert (served.folder / "uploads/e").read_bytes() == b"onetwo"
    status, _, document = served.request("PUT", "/uploads/f", body, {"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="})
    assert (status, xml_code(document)) == (400, "BadDigest")
    assert sorted(p.name for p in (served.folder / "uploads").iterdir() if p.is_file()) == ["c", "e"]


def test_ranges_and_conditions_are_honoured(served: Served, s3: Any) -> None:
    put = s3.put_object(Bucket="uploads", Key="k", Body=b"0123456789")

    def ranged(value: str) -> tuple[int, str | None, bytes]:
        status, headers, body = served.request("GET", "/uploads/k", headers={"range": value})
        return status, headers.get("content-range"), body

    assert ranged("bytes=2-4") == (206, "bytes 2-4/10", b"234")
    assert ranged("bytes=7-") == (206, "bytes 7-9/10", b"789")
    assert ranged("bytes=-3") == (206, "bytes 7-9/10", b"789")
    assert ranged("bytes=-99") == (206, "bytes 0-9/10", b"0123456789")
    assert ranged("bytes=5-99") == (206, "bytes 5-9/10", b"56789")
    assert ranged("bytes=0-1,3-4")[::2] == (200, b"0123456789")
    assert ranged("bytes=4-2")[::2] == (200, b"0123456789")
    assert ranged("lines=1-2")[::2] == (200, b"0123456789")
    for beyond in ("bytes=10-", "bytes=-0"):
        status, content_range, body = ranged(beyond)
        assert (status, content_range, xml_code(body)) == (416, "bytes */10", "InvalidRange")
    assert s3.get_object(Bucket="uploads", Key="k", IfMatch=put["ETag"])["ContentLength"] == 10
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket="uploads", Key="k", IfMatch='"other"')
    assert code_of(caught) == "PreconditionFailed"
    status, headers, body = served.request("GET", "/uploads/k", headers={"if-none-match": put["ETag"]})
    assert (status, headers["etag"], body) == (304, put["ETag"], b"")
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="uploads", Key="k", Body=b"new", IfNoneMatch="*")
    assert code_of(caught) == "PreconditionFailed"
    s3.put_object(Bucket="uploads", Key="new", Body=b"new", IfNoneMatch="*")
    assert (served.folder / "uploads/k").read_bytes() == b"0123456789"


def test_an_empty_object_is_an_object(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="empty", Body=b"")
    assert s3.get_object(Bucket="uploads", Key="empty")["Body"].read() == b""
    assert s3.head_object(Bucket="uploads", Key="empty")["ContentLength"] == 0


def test_listings_page_through_prefixes_and_delimiters_like_s3(served: Served, s3: Any) -> None:
    keys = [f"{a}/{b}" for a in ("img", "img.old", "txt") for b in range(6)] + ["img", "top", "zz/deep/er"]
    for key in keys:
        if key != "img":
            s3.put_object(Bucket="uploads", Key=key, Body=b"x")
    keys.remove("img")
    keys.sort(key=str.encode)

    def pages(**parameters: Any) -> tuple[list[str], list[str], int]:
        found: list[str] = []
        prefixes: list[str] = []
        number = 0
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket="uploads", **parameters):
            number += 1
            entries = [entry["Key"] for entry in page.get("Contents", [])]
            common = [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            assert page["KeyCount"] == len(entries) + len(common)
            assert page["IsTruncated"] is ("NextContinuationToken" in page)
            found += entries
            prefixes += common
        return found, prefixes, number

    for size in (2, 5, 20, 1000):
        small = {"PaginationConfig": {"PageSize": size}}
        assert pages(**small)[:2] == (keys, [])
        assert pages(Prefix="img/", **small)[:2] == ([k for k in keys if k.startswith("img/")], [])
        assert pages(Delimiter="/", **small)[:2] == (["top"], ["img.old/", "img/", "txt/", "zz/"])
        assert pages(Delimiter="/", Prefix="zz/", **small)[:2] == ([], ["zz/deep/"])
        assert pages(StartAfter="txt/3", **small)[:2] == ([k for k in keys if k > "txt/3"], [])
    assert pages(PaginationConfig={"PageSize": 5})[2] == 4
    assert s3.list_objects_v2(Bucket="uploads", MaxKeys=0)["KeyCount"] == 0
    assert s3.list_objects_v2(Bucket="uploads", Prefix="nothing")["KeyCount"] == 0


def test_a_delimited_listing_leaps_over_more_objects_than_a_page(served: Served) -> None:
    folder = served.folder / "other-bucket"
    for name in ("a", "c"):
        (folder / name).mkdir()
        for i in range(1100):
            (folder / name / f"{i}").touch()
    (folder / "b").touch()
    client = served.client()
    found = 0
    while found < 2201:
        listed = [page["KeyCount"] for page in client.get_paginator("list_objects_v2").paginate(Bucket="other-bucket")]
        found = sum(listed)
    page = client.list_objects_v2(Bucket="other-bucket", Delimiter="/")
    assert [entry["Prefix"] for entry in page["CommonPrefixes"]] == ["a/", "c/"]
    assert [entry["Key"] for entry in page["Contents"]] == ["b"]
    assert not page["IsTruncated"]
    client.close()


def test_buckets_are_there_or_told_of(served: Served, s3: Any) -> None:
    assert s3.head_bucket(Bucket="uploads")["ResponseMetadata"]["HTTPStatusCode"] == 200
    with pytest.raises(ClientError) as caught:
        s3.list_objects_v2(Bucket="nowhere")
    assert code_of(caught) == "NoSuchBucket"
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket="nowhere", Key="k", Body=b"")
    assert code_of(caught) == "NoSuchBucket"
    with pytest.raises(ClientError) as caught:
        s3.create_bucket(Bucket="uploads")
    assert code_of(caught) == "BucketAlreadyOwnedByYou"
    for path in ("/uploads", "/uploads/", "/uploads/a/b", "/other-bucket/x"):
        assert served.api.owns(path)
    for path in ("/", "", "/upload", "/uploads2/x", "/2015-03-31/functions"):
        assert not served.api.owns(path)


def test_objects_that_are_not_there_are_told_of(served: Served, s3: Any) -> None:
    (served.folder / "uploads/folder").mkdir(exist_ok=True)
    for key in ("missing", "folder", "folder/missing", "missing/below"):
        with pytest.raises(ClientError) as caught:
            s3.get_object(Bucket="uploads", Key=key)
        assert code_of(caught) == "NoSuchKey"
        with pytest.raises(ClientError) as caught:
            s3.head_object(Bucket="uploads", Key=key)
        assert code_of(caught) == "404"
    assert served.request("DELETE", "/uploads/folder")[0] == 204
    assert (served.folder / "uploads/folder").is_dir()


@pytest.mark.parametrize(
    "path",
    [
        "/uploads/../thawd.db",
        "/uploads/..%2Fthawd.db",
        "/uploads/a/../../thawd.db",
        "/uploads/./x",
        "/uploads//etc/passwd",
        "/uploads/%2Fetc/passwd",
        "/uploads/a//b",
        "/uploads/a/",
        "/uploads/.thawd-staging/x",
        "/uploads/.hidden",
        "/uploads/a/.hidden/b",
        "/uploads/nul%00byte",
        "/uploads/" + "x" * 1025,
        "/uploads/" + "x" * 256,
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_keys_that_lead_elsewhere_are_refused(served: Served, s3: Any, path: str, method: str) -> None:
    status, _, body = served.request(method, path, b"x" if method == "PUT" else None)
    if len(path) == len("/uploads/") + 256 and method != "PUT":
        assert status in (204, 400, 404)
    else:
        assert (status, xml_code(body)) in ((400, "InvalidArgument"), (400, "KeyTooLongError"))
    assert served.events() == {}


def test_links_that_lead_elsewhere_are_not_followed(served: Served, s3: Any, tmp_path: Path) -> None:
    root = served.folder / "uploads"
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "out-file").symlink_to(tmp_path / "secret")
    (root / "out-folder").symlink_to(tmp_path)
    try:
        for key in ("out-file", "out-folder/secret"):
            with pytest.raises(ClientError) as caught:
                s3.get_object(Bucket="uploads", Key=key)
            assert code_of(caught) == "NoSuchKey"
            s3.delete_object(Bucket="uploads", Key=key)
        for key in ("out-folder/secret", "out-folder/new/deep"):
            with pytest.raises(ClientError) as caught:
                s3.put_object(Bucket="uploads", Key=key, Body=b"overwritten")
            assert code_of(caught) == "InvalidArgument"
        assert (tmp_path / "secret").read_bytes() == b"secret"
        assert [p.name for p in tmp_path.iterdir()] == ["secret"]
        # A PUT takes the place of a link, it does not write through it
        s3.put_object(Bucket="uploads", Key="out-file", Body=b"mine")
        assert (tmp_path / "secret").read_bytes() == b"secret"
        assert (root / "out-file").read_bytes() == b"mine"
    finally:
        (root / "out-folder").unlink()


def test_a_key_that_another_excludes_is_told_of(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="file", Body=b"1")
    s3.put_object(Bucket="uploads", Key="dir/file", Body=b"1")
    for key in ("file/below", "dir"):
        with pytest.raises(ClientError) as caught:
            s3.put_object(Bucket="uploads", Key=key, Body=b"2")
        assert code_of(caught) == "OperationAborted"
    assert list((served.folder / "uploads/.thawd-staging").iterdir()) == []


def test_what_is_not_offered_is_refused_by_name(served: Served, s3: Any) -> None:
    s3.put_object(Bucket="uploads", Key="k", Body=b"1")
    calls = [
        lambda: s3.create_multipart_upload(Bucket="uploads", Key="k"),
        lambda: s3.copy_object(Bucket="uploads", Key="k2", CopySource="uploads/k"),
        lambda: s3.put_object_tagging(Bucket="uploads", Key="k", Tagging={"TagSet": []}),
        lambda: s3.get_object_acl(Bucket="uploads", Key="k"),
        lambda: s3.get_object(Bucket="uploads", Key="k", VersionId="1"),
        lambda: s3.list_objects(Bucket="uploads"),
        lambda: s3.get_bucket_location(Bucket="uploads"),
        lambda: s3.delete_objects(Bucket="uploads", Delete={"Objects": [{"Key": "k"}]}),
        lambda: s3.put_object(Bucket="uploads", Key="k", Body=b"2", IfMatch='"x"'),
    ]
    for call in calls:
        with pytest.raises(ClientError) as caught:
            call()
        assert code_of(caught) == "NotImplemented"
    with pytest.raises(ClientError, match="multipart_threshold"):
        calls[0]()
    status, _, body = served.request("PUT", "/uploads/big", b"", {"x-amz-decoded-content-length": str(6 * 1024**3)})
    assert (status, xml_code(body)) == (400, "EntityTooLarge")
    for parameter in ("max-keys=-1", "max-keys=x", "continuation-token=%21", "encoding-type=xml"):
        status, _, body = served.request("GET", f"/uploads?list-type=2&{parameter}")
        assert (status, xml_code(body)) == (400, "InvalidArgument")
    assert s3.get_object(Bucket="uploads", Key="k")["Body"].read() == b"1"


def test_an_upload_that_breaks_off_leaves_nothing_behind(served: Served, s3: Any) -> None:
    staging = served.folder / "uploads/.thawd-staging"
    s3.put_object(Bucket="uploads", Key="first", Body=b"1")
    served.events()
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(
            b"PUT /uploads/half HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 4_000_000
        )
        while not list(staging.iterdir()):
            pass
    while list(staging.iterdir()):
        pass
    assert not (served.folder / "uploads/half").exists()
    s3.put_object(Bucket="uploads", Key="last", Body=b"1")
    assert served.events() == {"ObjectCreated:Put last": 1}


def test_an_upload_may_wait_for_leave_to_continue(served: Served, s3: Any) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(
            b"PUT /uploads/k HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
            b"expect: 100-continue\r\nconnection: close\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(b"ok")
        assert b"200 OK" in connection.recv(1000)
    assert (served.folder / "uploads/k").read_bytes() == b"ok"


def test_a_get_gives_one_version_even_when_the_object_is_overwritten_meanwhile(served: Served, s3: Any) -> None:
    old, new = b"a" * 30_000_000, b"b" * 30_000_000
    s3.put_object(Bucket="uploads", Key="k", Body=old)
    got = s3.get_object(Bucket="uploads", Key="k")
    stream = got["Body"]
    start = stream.read(1000)
    s3.put_object(Bucket="uploads", Key="k", Body=new)
    assert hashlib.md5(start + stream.read()).hexdigest() == got["ETag"].strip('"')


def test_what_a_crash_left_in_staging_is_cleared_but_not_what_is_in_use(tmp_path: Path) -> None:
    staging = tmp_path / "uploads/.thawd-staging"
    staging.mkdir(parents=True)
    (staging / "left").write_bytes(b"half")
    holder = subprocess.Popen(
        ["flock", staging / "in-use", "-c", "echo held; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with Served(tmp_path) as served:
        served.request("PUT", "/uploads/k", b"1")
        assert [p.name for p in staging.iterdir()] == ["in-use"]
    holder.communicate()


def test_a_bucket_whose_folder_is_gone_says_so_and_is_not_made_anew(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        (tmp_path / "uploads").rename(tmp_path / "away")
        for method in ("PUT", "HEAD"):
            status, _, body = served.request(method, "/uploads/k" if method == "PUT" else "/uploads", b"1")
            assert status == 404
            assert method == "HEAD" or xml_code(body) == "NoSuchBucket"
        assert not (tmp_path / "uploads").exists()


def test_a_full_disk_is_told_and_leaves_nothing_behind() -> None:
    folder = Path(tempfile.mkdtemp(prefix="thawd-disk-"))
    (folder / "uploads").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder / "uploads"], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes root")
    try:
        with Served(folder) as served:
            for _ in range(3):
                status, headers, body = served.request("PUT", "/uploads/big", b"x" * 8_000_000)
                assert (status, xml_code(body), headers["retry-after"]) == (503, "SlowDown", "1")
                assert b"is full" in body
                assert served.request("PUT", "/uploads/small", b"x" * 1_000_000)[0] == 200
            assert sorted(p.name for p in (folder / "uploads").iterdir()) == [".thawd-staging", "small"]
            assert list((folder / "uploads/.thawd-staging").iterdir()) == []
            assert served.events() == {"ObjectCreated:Put small": 3}
    finally:
        subprocess.run(["umount", "--lazy", folder / "uploads"], check=True)


def test_a_connection_goes_on_after_a_refused_upload(served: Served, s3: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    for _ in range(3):
        connection.request("PUT", "/uploads/.hidden", body=b"x" * 5_000_000)
        response = connection.getresponse()
        assert (response.status, xml_code(response.read())) == (400, "InvalidArgument")
        assert not response.will_close
    connection.request("GET", "/uploads/missing")
    assert connection.getresponse().status == 404
    connection.close()
    # One that waits for leave to send its body gets an answer at once, and no leave
    with socket.create_connection(("127.0.0.1", served.port)) as waiting:
        waiting.sendall(
            b"PUT /uploads/.hidden HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
        )
        answer = b""
        while data := waiting.recv(1000):
            answer += data
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answer


def test_a_key_is_quoted_in_errors(served: Served, s3: Any) -> None:
    status, _, body = served.request("GET", "/uploads/" + quote("<b>&\x01"))
    assert (status, xml_code(body)) == (404, "NoSuchKey")
